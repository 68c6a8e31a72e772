"""Errors that a user can act on: one sentence that says what is wrong, where, and what to do."""

from __future__ import annotations


class EngineError(Exception):
    """Base of every error that the engine raises for a user's mistake or an impossible request."""


class UnsupportedModelError(EngineError):
    """The model cannot be run on packed rows; the message names the architecture and the reason."""


class SettingsError(EngineError):
    """A setting, policy or workload that makes no sense; the message names the field and its value."""


class LogitsError(EngineError):
    """No token can be chosen from a row of logits; the message names the row. It ends one request, never the run."""


class PlaybackError(EngineError):
    """A pinned schedule could not be followed; the message names the step."""
