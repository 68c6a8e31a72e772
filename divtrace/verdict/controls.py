"""The controls, one line each: same inputs, same weights, A against A, recording on against off.

Owns what each asks and how its answer reads. Must not know origins or proofs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from divtrace.divergence.compare import diff_traces
from divtrace.divergence.records import DiffResult, Outcome
from divtrace.proof.recording_check import RecordingCheck
from divtrace.proof.records import ReplayControl
from divtrace.trace.reader import Trace
from divtrace.verdict.records import Control
from engine.environment import describe_environment

MOST_NAMED = 3


def same_prompts(diff: DiffResult) -> Control:
    """Prompt ids of all requests in common."""
    differing = [r.id_a for r in diff.requests if r.prompt_difference is not None]
    if differing:
        return Control("same prompts", False, f"prompt ids of {', '.join(differing[:MOST_NAMED])} differ")
    return Control("same prompts", True, f"prompt ids of {len(diff.requests)} requests are equal")


def same_weights(diff: DiffResult) -> Control:
    """The models' weights, by hash."""
    words = {
        True: "the hashes of the weights are equal",
        False: "the hashes of the weights differ",
        None: "not recorded",
    }
    return Control("same weights", diff.inputs.weights_equal, words[diff.inputs.weights_equal])


def against_again(a: Trace, again: Trace) -> Control:
    """Run A against another recording of the same run."""
    found = diff_traces(a, again)
    compared = (
        f"{found.compared.tokens} tokens, {found.compared.kv_rows} K/V rows of {found.compared.requests} requests"
    )
    name = "A against A"
    if found.outcome is Outcome.NONE_SEEN:
        return Control(name, True, f"recorded twice ({again.path}): no difference seen in {compared}")
    if found.outcome is Outcome.NOTHING_COMPARED:
        return Control(name, None, f"{again.path} has no request in common with run A")
    request = next(
        (r for r in found.requests if r.divergence or r.state_differs or r.prompt_difference is not None), None
    )
    where = "" if request is None else f", first in request {request.id_a!r}"
    return Control(name, False, f"recorded twice ({again.path}): {found.outcome.value}{where}; compared {compared}")


def against_replay(control: ReplayControl, trace: Trace) -> Control:
    """A run against its own playback."""
    name = f"{control.run} against {control.run}"
    if control.is_equal:
        evidence = f"{control.steps} steps played back: every token, logit and K/V row is the same bit for bit"
        return Control(name, True, evidence)
    evidence = (
        f"played back, it differs from its own trace from step {control.first_differing_step} on ({control.what})"
    )
    elsewhere = environment_differences(trace)
    if elsewhere:
        evidence += f"; but this is not where it was recorded: {', '.join(elsewhere[:MOST_NAMED])} differ"
    return Control(name, False, evidence)


def recording_on_and_off(check: RecordingCheck) -> Control:
    """A playback without a recorder against the recorded run."""
    what = "token and logits" if check.with_logits else "token"
    name = "recording"
    if check.first_step is None:
        return Control(
            name, True, f"played back without a recorder: {what} of {check.decisions} decisions are the same"
        )
    evidence = f"played back without a recorder, the {what} of step {check.first_step} differ from the recorded ones"
    return Control(name, False, evidence)


def environment_differences(trace: Trace) -> tuple[str, ...]:
    """Dotted names of what is recorded about the machine and is another here."""
    here = dict(_leaves("", describe_environment()))
    recorded = dict(_leaves("", trace.header.environment))
    return tuple(sorted(name for name in here.keys() | recorded.keys() if here.get(name) != recorded.get(name)))


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(f"{name}.{key}" if name else str(key), inner)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            # Libraries are listed in the order in which a process happened to load them.
            label = inner.get("internal_api", number) if isinstance(inner, Mapping) else number
            yield from _leaves(f"{name}.{label}", inner)
    elif value is not None:
        yield name, value
