"""What every benchmark is given: the models, and how much work it may do."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property

from engine.bench.meter import Clock
from engine.errors import SettingsError
from engine.model.load import LoadedModel, load_model


@dataclass(frozen=True)
class BenchContext:
    """`rounds`: how often each arm runs. `quick`: smallest sizes that still show the effect.

    `clock` times everything. `model_source` may be absent for benchmarks that need the tiny model alone.
    """

    model_source: str | None = None
    rounds: int = 3
    quick: bool = False
    clock: Clock = time.perf_counter

    @cached_property
    def model(self) -> LoadedModel:
        """The real model, loaded at first use.

        Raises:
            SettingsError: none was named.
        """
        if not self.model_source:
            raise SettingsError(
                "this benchmark needs a model; name one with --model (a GGUF file, directory or hub id)."
            )
        return load_model(self.model_source)

    @cached_property
    def tiny(self) -> LoadedModel:
        """A random model of one small layer: the same schedules in a thousandth of the time."""
        from fixtures.tiny_models import tiny_model  # part of the source tree, not of an installed package

        return tiny_model(layers=1, hidden_size=32, intermediate_size=64, heads=2, kv_heads=1)

    def sized(self, full: int, quick: int) -> int:
        """One of two sizes."""
        return quick if self.quick else full
