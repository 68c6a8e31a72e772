"""The way of a difference as three stations: origin, carriers, split. Words only; must not know HTML."""

from __future__ import annotations

from dataclasses import dataclass

from divtrace.origin.records import OriginResult
from divtrace.render.text import counted, positions
from divtrace.report.evidence import crossing_sentence, main_crossing, origin_of, quoted_text, signed, who_joined
from divtrace.report.proof_words import cause_roles
from divtrace.verdict.records import BlameResult


@dataclass(frozen=True, slots=True)
class ChainCard:
    """One station between the cause and the split."""

    name: str
    where: str
    lines: tuple[str, ...]


def chain(blame: BlameResult) -> tuple[ChainCard, ...]:
    """Origin, carriers and split as three stations; empty where no origin was found."""
    origins, origin = blame.origins, origin_of(blame)
    if origins is None or origin is None:
        return ()
    return (_origin_card(blame), _carrier_card(origins), _flip_card(origins))


def _origin_card(blame: BlameResult) -> ChainCard:
    origin = origin_of(blame)
    assert origin is not None
    joined, crossing = who_joined(blame, origin), main_crossing(origin)
    lines = [f"Joined the batch: {joined}."] if joined else []
    lines += [f"{crossing_sentence(crossing)}."] if crossing else [f"What the trace shows: {origin.kind.value}."]
    is_kv = origin.tensor != "logits"
    first = f"layer {origin.layer}, {positions(origin.positions)}" if is_kv else "those of this very step"
    what = "K/V difference" if is_kv else "logit difference"
    moved = f", K/V drift {origin.drift.magnitude:.2g}" if origin.drift is not None and origin.drift.magnitude else ""
    lines.append(f"First {what}: {first}{moved}.")
    roles = cause_roles(blame)
    lines += [" ".join(roles)] if roles else []
    return ChainCard("Origin", f"step {origin.step_a} of A, step {origin.step_b} of B", tuple(lines))


def _carrier_card(origins: OriginResult) -> ChainCard:
    carriers = origins.carriers
    if not carriers.rows:
        return ChainCard(
            "Carriers", "none", ("No later row holds the difference: the decision read the origin’s rows.",)
        )
    own = origins.differing_rows - carriers.rows
    parts = f"{counted(carriers.rows, 'carrier')} + {counted(own, 'row')} of origins"
    sum_words = f" {parts} = {origins.differing_rows} differing rows." if own > 0 else ""
    read = f"{counted(carriers.rows, 'row')} of the {origins.rows_read} that the decision read"
    lines = [f"{read} {'was' if carriers.rows == 1 else 'were'} computed from differing rows.{sum_words}"]
    history = origins.divergence.flip if origins.divergence is not None else None
    if history is not None and history.median_drift_before is not None:
        lines.append(
            f"Logit drift on the way: {history.median_drift_before:.2g} (median), {history.largest_drift_before:.2g} "
            "at most. It changed no token: every gap was larger."
        )
    return ChainCard("Carriers", positions(carriers.positions), tuple(lines))


def _flip_card(origins: OriginResult) -> ChainCard:
    where = f"position {origins.position}, step {origins.step_a} of A, step {origins.step_b} of B"
    found = origins.divergence
    if origins.failed:
        lines = [f"No token was possible in run {' and '.join(origins.failed)}."]
        return ChainCard("Failure", where, tuple(lines))
    if found is None:
        return ChainCard("Decision", where, ("Both runs decided alike; the logits differ.",))
    lines = [f"A wrote {quoted_text(found.token_a.text)}, B wrote {quoted_text(found.token_b.text)}."]
    moved = found.flip.differential_drift
    if found.flip.margin_a is not None and moved is not None:
        # The record counts towards B's token; on a page a gap is the own token's lead, and drift adds to it.
        gap = f"Gap of {quoted_text(found.token_a.text)}: {signed(found.flip.margin_a)} in A"
        lines.append(f"{gap}, gap drift {signed(-moved)}, so {signed(found.flip.margin_a - moved)} in B.")
    lines.append(f"{found.flip.reason[:1].upper()}{found.flip.reason[1:]}.")
    return ChainCard("Split" if origins.flipped else "Decision", where, tuple(lines))
