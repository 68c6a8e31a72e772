"""The trials of a proof, one line each, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from divtrace.divergence.records import Token
from divtrace.origin.records import OriginResult
from divtrace.proof.records import Direction, Method, NeutralTrial, Outcome, ProofResult, Trial
from divtrace.render.parts import line
from divtrace.render.text import counted, quoted, steps_named

MOST_TRIALS = 6
SWAP_WORDS = {
    True: "agrees with the paths",
    False: "does NOT agree with the paths",
    None: "not applicable: the rows of the deciding step itself, or of none",
}


def proof_lines(proof: ProofResult, origins: OriginResult) -> Iterator[RenderableType]:
    """At most twelve trials, then what was asked in all."""
    for trial in proof.trials[:MOST_TRIALS]:
        yield line(trial.direction.value, f"{trial_name(trial, proof)}: {trial_words(trial, proof, origins)}")
    for neutral in proof.neutral_trials[:MOST_TRIALS]:
        yield line("neutral", neutral_words(neutral, proof, origins))
    left_out = len(proof.trials) + len(proof.neutral_trials) - MOST_TRIALS
    if left_out > 0:
        yield line("", f"{counted(left_out, 'more trial')}; --json lists them all")
    if proof.causality.value != "untested":
        yield line("swap test", SWAP_WORDS[proof.swap_agrees])
    yield line("re-runs", f"{proof.reruns}, {len(proof.controls)} of them controls")


def trial_name(trial: Trial, proof: ProofResult) -> str:
    """Which run, with what of the other, in which steps."""
    restores = trial.direction is Direction.RESTORE
    run, other = ("B", "A") if restores else ("A", "B")
    steps = [proof.candidates[i].step_b if restores else proof.candidates[i].step_a for i in trial.candidates]
    what = "paths" if trial.method is Method.PATH else "K/V rows"
    return f"run {run} with {other}'s {what} in {steps_named(steps)}"


def trial_words(trial: Trial, proof: ProofResult, origins: OriginResult) -> str:
    """What came of it: token, bits, margin."""
    outcome = _outcome(trial, origins)
    if trial.same_logits:
        outcome += ", from logits equal to that run's bit for bit"
    if trial.margin is not None and trial.margin_without is not None:
        outcome += f"; the margin of its own token goes from {trial.margin_without:+.6f} to {trial.margin:+.6f}"
    if trial.method is Method.ROWS:
        return outcome
    sites = sum(len(proof.candidates[i].sites) for i in trial.candidates)
    return f"{counted(sites, 'site')} changed: {outcome}"


def neutral_words(trial: NeutralTrial, proof: ProofResult, origins: OriginResult) -> str:
    """What both runs decide with row-independent kernels."""
    steps = steps_named(proof.candidates[i].step_b for i in trial.candidates)
    kernels = f"both runs with row-independent kernels in {steps} of B"
    bits = "equal bit for bit" if trial.same_logits else "different"
    if trial.token_a == trial.token_b:
        return f"{kernels}: both pick {_token(trial.token_a, origins)}, logits {bits}"
    return f"{kernels}: A picks {_token(trial.token_a, origins)}, B {_token(trial.token_b, origins)}"


def _outcome(trial: Trial, origins: OriginResult) -> str:
    if trial.outcome is Outcome.LOGITS:
        return "as the other run" if trial.flips else "not as the other run"
    if trial.flips:
        return f"picks {_token(trial.chosen_token, origins)}, as the other run did"
    still = "still picks" if trial.chosen_token == trial.own_token else "picks"
    return f"{still} {_token(trial.chosen_token, origins)}"


def _token(token: int, origins: OriginResult) -> str:
    known: dict[int, Token] = {t.id: t for t in (origins.token_a, origins.token_b)}
    return quoted(known[token]) if token in known else f"token {token}"
