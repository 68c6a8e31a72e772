"""The command line: one file a command. Must not hold logic that the Python API could not reach."""
