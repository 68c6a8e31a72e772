"""Find the first token at which two runs of a language model differ, and the earlier batch that caused it."""

__version__ = "0.1.0"
