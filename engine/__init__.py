"""A continuous-batching serving engine on MLX that tells an observer what every step did.

Owns: loading, scheduling, KV memory, kernels, sampling, speculation. Must not know: traces, diffing, blame.
"""
