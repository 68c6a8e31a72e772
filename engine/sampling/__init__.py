"""Choosing tokens from logits: processors, filters, random numbers, stop rules. Knows no batch and no K/V."""
