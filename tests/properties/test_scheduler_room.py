"""What a store says about room is what then happens: `can_grow` and `can_admit` against `grow` and `admit`."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.batch import Batch, Segment, SegmentKind
from engine.kv.contiguous import ContiguousStore
from engine.kv.paged import PagedStore
from engine.kv.store import KVStore

prompts = st.lists(st.integers(0, 1), min_size=1, max_size=12).map(tuple)


def compute(store: KVStore, name: str, tokens: tuple[int, ...], step: int) -> bool:
    """Admit a request and compute its whole prompt; False (and released) where it does not fit."""
    first = store.admit(name, tokens).cached_tokens
    if not store.grow(name, len(tokens)):
        store.release(name)
        return False
    batch = Batch(step, (Segment(name, SegmentKind.PREFILL, first, tokens[first:], 0, 1),))
    rows = np.zeros((batch.packed_rows, 1, 1), np.float32)
    store.begin_step(batch)
    store.write(0, rows, rows)
    store.commit_step(batch)
    return True


def fill(store: KVStore, before: list[tuple[tuple[int, ...], bool]]) -> list[str]:
    """Compute some prompts, close those that are marked; returns who stays open."""
    open_requests = []
    for index, (tokens, closes) in enumerate(before):
        if compute(store, f"r{index}", tokens, index):
            if closes:
                store.release(f"r{index}")
            else:
                open_requests.append(f"r{index}")
    return open_requests


stores = st.one_of(
    st.builds(PagedStore, st.integers(2, 8), block_size=st.sampled_from([1, 2, 4]), prefix_cache=st.booleans()),
    st.builds(ContiguousStore, st.integers(4, 30)),
)


@settings(max_examples=400, deadline=None)
@given(
    store=stores,
    before=st.lists(st.tuples(prompts, st.booleans()), max_size=4),
    tokens=prompts,
    more=st.integers(0, 6),
)
def test_can_admit_says_whether_admit_and_grow_succeed(
    store: KVStore, before: list[tuple[tuple[int, ...], bool]], tokens: tuple[int, ...], more: int
) -> None:
    fill(store, before)
    length = len(tokens) + more
    promised = store.can_admit(tokens, length)
    store.admit("new", tokens)
    assert store.grow("new", length) == promised
    store.check_integrity()


@settings(max_examples=400, deadline=None)
@given(
    store=stores,
    before=st.lists(st.tuples(prompts, st.booleans()), max_size=4),
    more=st.lists(st.integers(0, 6), min_size=4, max_size=4),
)
def test_can_grow_says_whether_all_grow_together(
    store: KVStore, before: list[tuple[tuple[int, ...], bool]], more: list[int]
) -> None:
    open_requests = fill(store, before)
    lengths = {name: len(before[int(name[1:])][0]) + extra for name, extra in zip(open_requests, more, strict=False)}
    promised = store.can_grow(lengths)
    grown = [store.grow(name, length) for name, length in lengths.items()]
    assert all(grown) == promised
    store.check_integrity()
