"""The model side of the engine: loading, tokenizers, and the packed forward on unmodified mlx-lm classes."""
