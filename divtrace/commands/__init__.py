"""The command line: one file a command. Must not hold logic that the Python API could not reach.

A command's module loads when it is helped or completed; what does its work loads inside the function, when it runs.
"""
