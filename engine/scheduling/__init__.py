"""Decides which rows run in a step. Must not know models, kernels or arrays."""
