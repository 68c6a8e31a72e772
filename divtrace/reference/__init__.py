"""Which run is right? The deciding logits in float64, from the same weights and tokens. Must not know kernels."""
