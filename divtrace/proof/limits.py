"""How much a proof may be asked for. Must not import what proves: commands and help read it."""

from __future__ import annotations

MOST_JOINT_TRIALS = 10
"""Re-runs for making a set smaller that only brings B's outcome together: by then the cause is known, and re-runs
take seconds.
"""

MOST_POSITIONS = 512
"""Positions behind a decision at which drift can be measured."""
