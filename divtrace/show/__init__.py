"""One trace on a terminal or as JSON: run, requests, steps, one step's batch, timeline. Must not know a second run."""

from divtrace.show.render_requests import requests_json, show_requests
from divtrace.show.render_run import run_json, show_run
from divtrace.show.render_step import show_step, step_json
from divtrace.show.render_steps import show_steps, steps_json
from divtrace.show.timeline import show_timeline, timeline_json

__all__ = [
    "requests_json",
    "run_json",
    "show_requests",
    "show_run",
    "show_step",
    "show_steps",
    "show_timeline",
    "step_json",
    "steps_json",
    "timeline_json",
]
