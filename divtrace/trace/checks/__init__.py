"""The invariants of a trace, one file per kind. Each check yields findings and never raises for a wrong number."""
