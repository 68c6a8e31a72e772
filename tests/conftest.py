"""What holds for the whole suite: hypothesis sets no time limit, for times belong into benchmarks, not into tests."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
