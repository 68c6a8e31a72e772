"""What `import divtrace` offers: one function a command, with the same results and the same sentences.

Owns options and their checks, so that a command only parses, calls and prints. Must not know terminals.
"""
