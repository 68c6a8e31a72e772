"""Many pairs in one process: each prompt alone, and joined for a while by a neighbour; diff and blame of each pair.

`python -m divtrace.pairs --model smollm2 --dtype float16 --policies native gemv invariant` prints a table; it is how
the GPU figures of docs/benchmarks/cuda.md are made. One process, because a GPU compiles its kernels once per process.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from divtrace.divergence.compare import diff_traces
from divtrace.divergence.records import RequestDiff
from divtrace.recording import Arm, RecordOptions, load_shared, record_arm, resolve_model
from divtrace.trace.reader import open_trace
from divtrace.verdict.blame import ProofOptions, blame
from engine.errors import EngineError
from engine.model.load import LoadedModel
from engine.workload import parse_workload
from fixtures.prompts import ANCHORS, FOLLOWERS

ARMS = {"solo": {"max_active": 1}, "joined": {"max_active": 2}}


@dataclass(frozen=True, slots=True)
class PairOptions:
    """What each pair runs. The neighbour joins after `after_tokens` tokens of the anchor."""

    dtype: str
    tokens: int
    neighbour_tokens: int
    after_tokens: int
    settings: Mapping[str, Any]
    only_flips: bool


@dataclass(frozen=True, slots=True)
class PairResult:
    """What one pair showed; positions are output indices, None where nothing differed."""

    prompt: int
    policy: str
    first_row_output: int | None
    flip_output: int | None
    gap_solo: float | None
    gap_joined: float | None
    verdict: str
    confidence: str
    origin_step: int | None
    origin_rows: int | None
    record_s: tuple[float, float]
    blame_s: float


def pair_document(model: str, prompt: str, neighbour: str, options: PairOptions) -> dict[str, Any]:
    """The workload of one pair."""
    after = {"request": "anchor", "tokens": options.after_tokens}
    return {
        "version": 1,
        "model": model,
        "dtype": options.dtype,
        "requests": [
            {"id": "anchor", "chat": prompt, "max_tokens": options.tokens, "ignore_eos": True},
            {
                "id": "neighbour",
                "chat": neighbour,
                "max_tokens": options.neighbour_tokens,
                "ignore_eos": True,
                "arrival": {"after": after},
            },
        ],
        "settings": dict(options.settings),
        "arms": ARMS,
    }


def run_pair(
    loaded: LoadedModel, model: str, index: int, policy: str, options: PairOptions, folder: Path
) -> PairResult:
    """Record both arms, compare the anchors, and blame a difference with proof."""
    document = pair_document(model, ANCHORS[index], FOLLOWERS[index % len(FOLLOWERS)], options)
    spec = parse_workload(document, "pairs")
    times, paths = [], []
    for name in ARMS:
        arm = Arm(name, spec.arm_settings(name, {"policy": policy}, "pairs"))
        started = time.perf_counter()
        paths.append(record_arm(loaded, spec, arm, folder, RecordOptions(overwrite=True)).path)
        times.append(time.perf_counter() - started)
    started = time.perf_counter()
    with open_trace(paths[0]) as solo, open_trace(paths[1]) as joined:
        anchor = next(r for r in diff_traces(solo, joined).requests if r.id_a == "anchor")
        differs = anchor.divergence is not None or (anchor.state_differs and not options.only_flips)
        result = blame(solo, joined, "anchor", proof=ProofOptions(lambda: loaded)) if differs else None
    origins = result.origins.origins if result is not None and result.origins is not None else ()
    return PairResult(
        prompt=index,
        policy=policy,
        first_row_output=_output_index(anchor, anchor.first_row_difference),
        flip_output=anchor.divergence.output_index if anchor.divergence else None,
        gap_solo=anchor.divergence.gap_a if anchor.divergence else None,
        gap_joined=anchor.divergence.gap_b if anchor.divergence else None,
        verdict=result.verdict.value if result else ("not asked" if anchor.state_differs else "no difference"),
        confidence=result.confidence.value if result else "",
        origin_step=origins[0].step_b if origins else None,
        origin_rows=origins[0].batch_b.packed_rows if origins else None,
        record_s=(times[0], times[1]),
        blame_s=time.perf_counter() - started,
    )


def _output_index(request: RequestDiff, difference: Any) -> int | None:
    return None if difference is None else difference.position - request.prompt_tokens


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the pairs and print one JSON line each, then counts by policy."""
    parser = argparse.ArgumentParser(prog="python -m divtrace.pairs", description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--policies", nargs="+", default=["native", "gemv", "invariant"])
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--first", type=int, default=0, help="number of the first prompt")
    parser.add_argument("--only-flips", action="store_true", help="blame only pairs whose tokens differ")
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--neighbour-tokens", type=int, default=40)
    parser.add_argument("--after-tokens", type=int, default=10)
    parser.add_argument("--settings", type=json.loads, default={}, help="more engine settings, JSON")
    parser.add_argument("--folder", type=Path, default=Path("out/pairs"))
    chosen = parser.parse_args(arguments)
    options = PairOptions(
        chosen.dtype, chosen.tokens, chosen.neighbour_tokens, chosen.after_tokens, chosen.settings, chosen.only_flips
    )
    chosen.folder.mkdir(parents=True, exist_ok=True)
    source = resolve_model(chosen.model)
    loaded = load_shared(source, chosen.dtype)
    results = []
    for policy in chosen.policies:
        for index in range(chosen.first, chosen.first + chosen.prompts):
            try:
                results.append(run_pair(loaded, source, index, policy, options, chosen.folder))
            except EngineError as error:
                print(f"{policy}, prompt {index}: {error}", file=sys.stderr, flush=True)
                continue
            print(json.dumps(asdict(results[-1])), flush=True)
    for policy in chosen.policies:
        own = [r for r in results if r.policy == policy]
        rows = sum(r.first_row_output is not None for r in own)
        flips = sum(r.flip_output is not None for r in own)
        print(f"{policy}, {chosen.dtype}: state differs in {rows} of {len(own)}, tokens in {flips}", flush=True)


if __name__ == "__main__":
    main()
