"""Choosing tokens from logits: processors, filters, random numbers, stop rules. Must not know batches or K/V."""
