"""Kernel paths: which kernel a site takes, and the kernels that are ours. Must not know requests or schedules."""
