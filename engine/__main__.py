"""`python -m engine WORKLOAD`: serve a workload's requests with one arm's settings and print what they say."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.engine import Engine
from engine.errors import EngineError, SettingsError
from engine.metrics.observer import MetricsObserver
from engine.model.load import load_model
from engine.request import Completion
from engine.workload import build_requests, read_workload


def serve(arguments: Sequence[str] | None = None) -> None:
    """Run one arm and print what it said; the engine needs nobody else to watch it.

    Raises:
        EngineError: the workload or a setting makes no sense, or the model cannot be run.
    """
    parser = argparse.ArgumentParser(prog="python -m engine", description=__doc__)
    parser.add_argument("workload", type=Path)
    parser.add_argument("--model", required=True, help="a .gguf file, an mlx-lm directory or a hub id")
    parser.add_argument("--arm", default="", help="an arm of the file; its plain settings by default")
    parser.add_argument("--metrics", type=Path, default=None, help="write Prometheus text here at the end")
    options = parser.parse_args(arguments)
    spec = read_workload(options.workload)
    if options.arm and options.arm not in spec.arms:
        raise SettingsError(f"{options.workload} has no arm {options.arm!r}; it has {', '.join(spec.arms) or 'none'}.")
    metrics = MetricsObserver()
    loaded = load_model(options.model, spec.dtype)
    with Engine(loaded, spec.arm_settings(options.arm, {}, str(options.workload)), (metrics,)) as engine:
        for request in build_requests(spec, loaded.tokenizer):
            engine.submit(request)
        for completion in engine.run().values():
            print(_described(completion), flush=True)
            statistics = engine.speculator.statistics.get(completion.request_id)
            if statistics is not None:
                print(f"speculation: {json.dumps(statistics.summary().as_json())}\n")
        print(f"{engine.step_number} steps")
    if options.metrics is not None:
        options.metrics.write_bytes(metrics.render())


def _described(completion: Completion) -> str:
    seconds = completion.finished_s - completion.queued_s
    detail = f" ({completion.detail})" if completion.detail else ""
    reason = f"{completion.finish_reason.value}{detail}"
    return (
        f"[{completion.request_id}] {len(completion.tokens)} tokens in {seconds:.2f} s, {reason}\n{completion.text}\n"
    )


if __name__ == "__main__":
    try:
        serve()
    except EngineError as error:
        print(f"engine: {error}", file=sys.stderr)
        sys.exit(2)
