"""Did both runs get the same inputs? Settings, environment and hashes, what can change numerics first."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from deepdiff import DeepDiff

from divtrace.align.index import TraceIndex
from divtrace.align.pairing import RequestPair
from divtrace.align.runs import RunPair
from divtrace.divergence.records import Effect, InputComparison, SettingDifference

_WORDS = {
    Effect.RESULT: (
        "sampling temperature top_k top_p min_p penalty bias seed stop eos model weights checkpoint template rope"
    ),
    Effect.NUMERICS: (
        "kernel policy linear attention gemm gemv precision dtype bits quant group backend device gpu cpu chip "
        "blas thread mlx numpy numba cuda metal driver processor machine platform architecture override"
    ),
    Effect.BATCHING: (
        "active budget chunk admission priority arrival submitted block page prefix cache speculat draft bonus "
        "schedul batch preempt max_tokens limit sequences timeout cancel"
    ),
}
_PATTERNS = {effect: re.compile("|".join(words.split())) for effect, words in _WORDS.items()}
LONGEST_VALUE = 200


def compare_inputs(runs: RunPair, pairs: tuple[RequestPair, ...]) -> InputComparison:
    """Compare hashes, settings and environment of the runs and the settings of each pair of requests."""
    a, b = runs.a.trace.header, runs.b.trace.header
    differences = [
        *_differences("settings", a.settings, b.settings),
        *_differences("environment", a.environment, b.environment),
        *(
            difference
            for pair in pairs
            for difference in _differences(
                f"requests.{pair.id_a}",
                _request_settings(runs.a, pair.number_a),
                _request_settings(runs.b, pair.number_b),
            )
        ),
    ]
    order = list(Effect)
    differences.sort(key=lambda difference: order.index(difference.effect))
    return InputComparison(
        _equal_hashes(a.weights_hash, b.weights_hash),
        _equal_hashes(a.tokenizer_hash, b.tokenizer_hash),
        tuple(differences),
    )


def _request_settings(index: TraceIndex, number: int) -> Mapping[str, Any]:
    return index.request_settings(number)


def _equal_hashes(a: str, b: str) -> bool | None:
    return a == b if a and b else None


def _differences(root: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[SettingDifference]:
    if a == b:
        return
    tree = DeepDiff(dict(a), dict(b), view="tree")
    for change in (change for changes in tree.values() for change in changes):
        path = ".".join([root, *(str(part) for part in change.path(output_format="list"))])
        yield SettingDifference(path, _text(change.t1), _text(change.t2), effect_of(path))


def effect_of(path: str) -> Effect:
    """What a setting of this dotted path can change, judged by the words in its last parts."""
    for part in reversed(path.lower().split(".")[1:]):
        for effect, pattern in _PATTERNS.items():
            if pattern.search(part):
                return effect
    return Effect.OTHER


def _text(value: object) -> str | None:
    """A JSON text, or None for what DeepDiff calls not present."""
    if type(value).__name__ == "NotPresent":
        return None
    text = json.dumps(value, sort_keys=True, default=str)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 3] + "..."
