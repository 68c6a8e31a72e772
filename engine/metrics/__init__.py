"""Numbers about a running engine, for Prometheus and for people. Listens as an observer; must not know traces."""
