"""Speculative decoding: drafters, proposal lengths, verification, statistics. Knows no scheduler."""
