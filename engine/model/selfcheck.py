"""The load-time check: a mixed packed step must give what the model's own plain forward gives.

It catches layers that derive positions or state from something that packed rows do not carry; they would be wrong
without a word. Source of the idea: a survey of 70 mlx-lm architectures, one of which fails only here. Must not know
requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx_lm.models.cache import make_prompt_cache

from engine.batch import Batch, Segment, SegmentKind
from engine.errors import UnsupportedModelError
from engine.kernels.linear import on_cpu
from engine.kernels.policy import AttentionPath, KernelPolicy, LinearRule
from engine.kv.contiguous import ContiguousStore
from engine.model.packed import PackedModel

RELATIVE_TOLERANCE = 1e-4
CHECKED_MARK = "_packed_rows_checked"
CHUNKED = (1, 5, 2, 7, 3)
OTHER = (4, 6, 1)


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """Largest difference between packed and plain logits, relative to the largest plain logit."""

    relative_difference: float
    is_bitwise: bool


def check_packed_against_plain(packed: PackedModel, dtype: str, vocabulary_size: int) -> SelfCheck:
    """Run two requests (one in two chunks, so that a step mixes chunk and prompt) packed and plain, and compare.

    Raises:
        UnsupportedModelError: the results differ by more than rounding; names the architecture.
    """
    prompts = [tuple(token % vocabulary_size for token in tokens) for tokens in (CHUNKED, OTHER)]
    with _row_independent_policy(packed):
        plain = np.stack([_plain_logits(packed, prompt) for prompt in prompts])
        mixed = _packed_logits(packed, *prompts)
    difference = float(np.abs(plain - mixed).max() / max(float(np.abs(plain).max()), 1e-30))
    same_choice = bool((plain.argmax(axis=1) == mixed.argmax(axis=1)).all())
    passes = difference <= RELATIVE_TOLERANCE if dtype == "float32" else same_choice
    if not passes or not np.isfinite(difference):
        raise UnsupportedModelError(
            f"{type(packed.model).__module__}: a packed step differs from the model's plain forward "
            f"by {difference:.1e} of "
            "its largest logit, so this architecture cannot be run on packed rows; use another model."
        )
    return SelfCheck(difference, plain.tobytes() == mixed.tobytes())


def ensure_checked(packed: PackedModel, dtype: str, vocabulary_size: int) -> None:
    """`check_packed_against_plain`, once per model object.

    Raises:
        UnsupportedModelError: as `check_packed_against_plain`.
    """
    if not getattr(packed.model, CHECKED_MARK, False):
        check_packed_against_plain(packed, dtype, vocabulary_size)
        object.__setattr__(packed.model, CHECKED_MARK, True)


@contextmanager
def _row_independent_policy(packed: PackedModel) -> Iterator[None]:
    asked_for = packed.policy
    rule = asked_for.linear.name
    if rule not in ("native", "invariant"):
        packed.policy = KernelPolicy(LinearRule("gemv" if on_cpu() else "native"), AttentionPath.SEGMENT)
    try:
        yield
    finally:
        packed.policy = asked_for


def _plain_logits(packed: PackedModel, prompt: tuple[int, ...]) -> npt.NDArray[np.float32]:
    packed.dispatcher.begin_step(0, len(prompt), None)
    logits = packed.model(mx.array([prompt]), cache=make_prompt_cache(packed.model))[0, -1]
    return np.array(logits.astype(mx.float32))


def _packed_logits(packed: PackedModel, chunked: tuple[int, ...], other: tuple[int, ...]) -> npt.NDArray[np.float32]:
    store = ContiguousStore()
    for name, prompt in (("chunked", chunked), ("other", other)):
        store.admit(name, prompt)
        store.grow(name, len(prompt))
    first = Batch(0, (Segment("chunked", SegmentKind.PREFILL, 0, chunked[:2], 0, 1),))
    packed.forward(first, store)
    store.commit_step(first)
    rest = chunked[2:]
    second = Batch(
        1,
        (
            Segment("chunked", SegmentKind.PREFILL, 2, rest, 0, 1),
            Segment("other", SegmentKind.PREFILL, 0, other, len(rest), 1),
        ),
    )
    return packed.forward(second, store).logits
