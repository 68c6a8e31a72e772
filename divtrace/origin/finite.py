"""Which runs hold NaN or Inf where an origin lies. Magnitudes and log-sums tell, so no tensor is needed."""

from __future__ import annotations

import numpy as np

from divtrace.align.index import Integers, TraceIndex
from divtrace.align.runs import RunPair
from divtrace.trace.schema import Level


def rows_not_finite(runs: RunPair, records_a: Integers, records_b: Integers, layer: int) -> tuple[str, ...]:
    """Runs, `A` or `B`, whose K or V of these records of `rows` is not finite at `layer`.

    A damaged digest can differ where no layer does; there is then no `layer` to look at, and no run to name.
    """
    if layer >= runs.a.layers:
        return ()
    return tuple(
        name
        for name, index, records in (("A", runs.a, records_a), ("B", runs.b, records_b))
        if any(
            not np.isfinite(index.gather("rows", column, records)[:, layer]).all()
            for column in ("key_magnitude", "value_magnitude")
        )
    )


def logits_not_finite(runs: RunPair, record_a: int, record_b: int) -> tuple[str, ...]:
    """Runs whose logits of one decision (a record of `sampled` in each) hold NaN or +Inf."""
    if not runs.both_have(Level.LOGITS):
        return ()
    return tuple(name for name, index, at in (("A", runs.a, record_a), ("B", runs.b, record_b)) if _is_bad(index, at))


def _is_bad(index: TraceIndex, record: int) -> bool:
    total = float(index.trace.column("sampled", "log_sum_exp", record, record + 1)[0])
    return bool(np.isnan(total) or total == np.inf)
