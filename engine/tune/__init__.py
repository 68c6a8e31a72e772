"""Finds the fastest linear path for each site shape and row count on this machine. Must not know requests."""

from engine.tune.measure import tune
from engine.tune.policy_file import read_policy, write_policy
from engine.tune.records import PathRange, ShapeTimings, TunedPolicy, TuneResult

__all__ = ["PathRange", "ShapeTimings", "TuneResult", "TunedPolicy", "read_policy", "tune", "write_policy"]
