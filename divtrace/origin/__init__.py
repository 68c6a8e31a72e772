"""Walks back from a decision to the records whose output differs while their inputs are equal. Proves
nothing.
"""
