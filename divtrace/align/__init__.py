"""Puts two runs side by side: requests by id or prompt, tokens and KV rows by position, never by step
number.
"""
