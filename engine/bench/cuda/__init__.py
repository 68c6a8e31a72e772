"""Scripts for a machine with a CUDA device; none of them runs in the test suite."""
