"""Plays traces back on this machine. Runs an engine; must not know why somebody wants a replay."""
