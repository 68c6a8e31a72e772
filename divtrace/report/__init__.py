"""One HTML file about a run or about two: verdict, texts, timeline, K/V, proof. Must not know the command line."""

from divtrace.report.write import write_report

__all__ = ["write_report"]
