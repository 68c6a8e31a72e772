"""K/V memory of all requests: blocks, sharing, and who wrote each row. Must not know schedules or kernels."""
