"""Benchmarks that anyone can run; each prints its command, its machine and ratios of one interleaved run."""
