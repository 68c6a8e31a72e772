"""Figures for a notebook, drawn with plotly. Owns looks; must not know how anything was found.

`Trace.plot_timeline`, `DiffResult.plot` and `BlameResult.plot` are the ways in. Every text out of a trace goes through
`divtrace.figures.text` before plotly sees it.
"""
