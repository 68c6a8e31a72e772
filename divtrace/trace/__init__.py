"""The trace file: its schema, writer and reader. Must not know alignment, blame or the terminal."""
