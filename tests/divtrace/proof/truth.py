"""Counterfactuals over a truth table: which candidates are in force decides the outcome, nothing is run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from divtrace.origin.records import Candidate, CandidateSite
from divtrace.proof.records import Direction, Method, NeutralTrial, ReplayControl, Trial

TOKEN_A, TOKEN_B = 1, 2
Effect = Callable[[frozenset[int]], bool]


def candidate(step: int, is_origin: bool = True) -> Candidate:
    return Candidate(step, step, (CandidateSite("model.layers.0.mlp.up_proj", "gemv", "gemm"),), is_origin)


@dataclass
class Truth:
    """`effect` tells from the candidates in force whether a run picks B's token. Run B has all of them, run A none.

    `effect_in_b` is another rule for run B, which may hold what no candidate stands for.
    """

    candidates: tuple[Candidate, ...]
    effect: Effect
    effect_in_b: Effect | None = None
    failing_run: str = ""
    swapped_effect: Effect | None = None
    neutral_agrees: Effect | None = None
    asks_for_bits: bool = False
    unswappable: frozenset[int] = frozenset()
    asked: dict[str, Trial] = field(default_factory=dict)
    asked_neutral: dict[tuple[int, ...], NeutralTrial] = field(default_factory=dict)
    controls: list[str] = field(default_factory=list)

    @property
    def trials(self) -> tuple[Trial, ...]:
        return tuple(self.asked.values())

    @property
    def neutral_trials(self) -> tuple[NeutralTrial, ...]:
        return tuple(self.asked_neutral.values())

    @property
    def reruns(self) -> int:
        return len(self.controls) + len(self.asked) + 2 * len(self.asked_neutral)

    def control(self, run: str) -> ReplayControl:
        self.controls.append(run)
        fails = run == self.failing_run
        return ReplayControl(run, not fails, 5, 3 if fails else None, "logits" if fails else "", 0.1, 0.0)

    def can_swap(self, chosen: Sequence[int]) -> bool:
        return bool(chosen) and not self.unswappable & set(chosen)

    def trial(self, direction: Direction, chosen: Sequence[int], method: Method = Method.PATH) -> Trial:
        indices = tuple(sorted(chosen))
        key = f"{direction}:{method}:{indices}"
        if key not in self.asked:
            restores = direction is Direction.RESTORE
            everything = frozenset(range(len(self.candidates)))
            in_force = everything - set(indices) if restores else frozenset(indices)
            effect = (self.effect_in_b or self.effect) if restores else self.effect
            effect = self.swapped_effect or effect if method is Method.ROWS else effect
            token = TOKEN_B if effect(in_force) else TOKEN_A
            own, other = (TOKEN_B, TOKEN_A) if restores else (TOKEN_A, TOKEN_B)
            self.asked[key] = Trial(direction, method, indices, token, own, other, None, None, None, 3, 0.0)
        return self.asked[key]

    def neutral_trial(self, chosen: Sequence[int]) -> NeutralTrial:
        indices = tuple(sorted(chosen))
        if indices not in self.asked_neutral:
            agree = self.neutral_agrees is not None and self.neutral_agrees(frozenset(indices))
            token = TOKEN_A if agree else TOKEN_B
            self.asked_neutral[indices] = NeutralTrial(indices, TOKEN_A, token, agree, agree, 6, 0.0)
        return self.asked_neutral[indices]
