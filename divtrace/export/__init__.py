"""Traces in formats that other tools open. Must not know the command line."""

from divtrace.export.perfetto import perfetto_events, write_perfetto

__all__ = ["perfetto_events", "write_perfetto"]
