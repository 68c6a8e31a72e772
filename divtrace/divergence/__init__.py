"""What differs between two runs and where first: inputs, tokens, logits, KV rows. Says nothing about
causes.
"""
