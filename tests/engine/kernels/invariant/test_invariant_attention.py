from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import EngineError
from engine.kernels.invariant import most_threads, paged_attention, visible_keys

SLOTS = 160


def random_array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def exact_attention(
    query: np.ndarray, keys: np.ndarray, values: np.ndarray, scale: float, sinks: np.ndarray | None
) -> np.ndarray:
    """One query (heads, size) over keys (count, kv_heads, size) in float64."""
    group = query.shape[0] // keys.shape[1]
    out = np.empty(query.shape, np.float64)
    for head in range(query.shape[0]):
        scores = keys[:, head // group].astype(np.float64) @ query[head].astype(np.float64) * scale
        all_scores = scores if sinks is None else np.append(scores, np.float64(sinks[head]))
        weights = np.exp(scores - all_scores.max()) / np.exp(all_scores - all_scores.max()).sum()
        out[head] = weights @ values[:, head // group].astype(np.float64)
    return out


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_query_depends_on_nothing_but_itself_and_its_keys(data: st.DataObject) -> None:
    kv_heads, group = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 6))
    size, length = data.draw(st.sampled_from([16, 64, 80])), data.draw(st.integers(1, 60))
    window = data.draw(st.none() | st.integers(1, 40))
    sinks = data.draw(st.sampled_from([None, random_array(kv_heads * group, seed=9)]))
    rows = data.draw(st.integers(1, 9))
    index = data.draw(st.integers(0, rows - 1))
    settings_of_call = {"scale": size**-0.5, "window": window, "sinks": sinks}

    query = random_array(1, kv_heads * group, size, seed=length)
    keys, values = random_array(length, kv_heads, size, seed=1), random_array(length, kv_heads, size, seed=2)
    alone = paged_attention(
        query,
        keys,
        values,
        visible_keys([np.arange(length)], [0], [length], pool_slots=length),
        **settings_of_call,
    )

    slots = np.random.default_rng(rows).permutation(SLOTS)
    pools = np.full((2, SLOTS, kv_heads, size), data.draw(st.sampled_from([0.0, np.nan, np.inf])), np.float32)
    pools[0, slots[:length]], pools[1, slots[:length]] = keys, values
    tables = np.zeros((2, 64), np.int32)
    tables[1, :length], tables[0, :60] = slots[:length], slots[60:120]
    company = np.full((rows, kv_heads * group, size), np.nan, np.float32)
    company[index] = query[0]
    lengths, table_of_row = np.arange(rows) * 7 % 60 + 1, np.zeros(rows)
    lengths[index], table_of_row[index] = length, 1
    visible = visible_keys(tables, table_of_row, lengths, pool_slots=SLOTS)
    threads = data.draw(st.integers(1, most_threads()))
    together = paged_attention(company, pools[0], pools[1], visible, threads=threads, **settings_of_call)
    assert together[index].tobytes() == alone[0].tobytes()


def test_a_long_prefill_is_bit_equal_to_its_chunks_on_any_number_of_threads() -> None:
    queries, keys, values = (
        random_array(70, 9, 64),
        random_array(70, 3, 64, seed=1),
        random_array(70, 3, 64, seed=2),
    )
    lengths = np.arange(1, 71)

    def attend(first: int, last: int, threads: int) -> bytes:
        visible = visible_keys([np.arange(70)], np.zeros(last - first), lengths[first:last], pool_slots=70)
        chunk = paged_attention(queries[first:last], keys, values, visible, scale=0.125, threads=threads)
        return chunk.tobytes()

    whole = attend(0, 70, most_threads())
    assert attend(0, 70, 1) == whole
    assert b"".join(attend(first, min(first + 13, 70), most_threads()) for first in range(0, 70, 13)) == whole


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 80),
    st.sampled_from([16, 64, 128]),
    st.sampled_from([1, 3, 7]),
    st.booleans(),
    st.integers(0, 99),
)
def test_the_result_is_close_to_float64(length: int, size: int, heads: int, sunk: bool, seed: int) -> None:
    query, keys = random_array(1, heads, size, seed=seed), random_array(length, 1, size, seed=seed + 1)
    values = random_array(length, 1, size, seed=seed + 2)
    sinks = random_array(heads, seed=seed + 3) if sunk else None
    visible = visible_keys([np.arange(length)], [0], [length], pool_slots=length)
    result = paged_attention(query, keys, values, visible, scale=size**-0.5, sinks=sinks)
    exact = exact_attention(query[0], keys, values, size**-0.5, sinks)
    assert np.abs(result[0] - exact).max() <= 4e-6 * max(1.0, np.abs(values).max())


def test_a_window_is_the_same_as_fewer_keys() -> None:
    query, keys, values = (
        random_array(1, 4, 32),
        random_array(50, 2, 32, seed=1),
        random_array(50, 2, 32, seed=2),
    )
    windowed = paged_attention(
        query, keys, values, visible_keys([np.arange(50)], [0], [50], pool_slots=50), scale=0.2, window=17
    )
    fewer = paged_attention(query, keys, values, visible_keys([np.arange(33, 50)], [0], [17], pool_slots=50), scale=0.2)
    assert windowed.tobytes() == fewer.tobytes()


def test_scores_that_are_far_apart_do_not_overflow() -> None:
    query, keys = random_array(1, 1, 16) * 1e4, random_array(40, 1, 16, seed=1)
    values = random_array(40, 1, 16, seed=2)
    visible = visible_keys([np.arange(40)], [0], [40], pool_slots=40)
    result = paged_attention(query, keys, values, visible, scale=1.0)
    best = int((keys[:, 0].astype(np.float64) @ query[0, 0]).argmax())
    assert result[0, 0].tobytes() == values[best, 0].tobytes()


@pytest.mark.parametrize(
    ("tables", "table_of_row", "lengths", "sentence"),
    [
        ([[0, 1, 2]], [1], [2], "slot table"),
        ([[0, 1, 2]], [0], [4], "sees fewer than 1 or more than 3"),
        ([[0, 1, 2]], [0], [0], "sees fewer"),
        ([[0, 9, 2]], [0], [2], "outside the pool"),
        ([[0, -1, 2]], [0], [2], "outside the pool"),
        ([[0, 1, 2]], [0, 0], [1], "needs tables"),
    ],
)
def test_a_slot_table_that_leads_outside_is_refused(
    tables: list[list[int]], table_of_row: list[int], lengths: list[int], sentence: str
) -> None:
    with pytest.raises(EngineError, match=sentence):
        visible_keys(tables, table_of_row, lengths, pool_slots=8)


def test_entries_that_no_row_sees_are_not_read() -> None:
    visible = visible_keys([[3, 99, -5]], [0], [1], pool_slots=8)
    values = random_array(8, 1, 16, seed=1)
    result = paged_attention(random_array(1, 1, 16), random_array(8, 1, 16), values, visible, scale=1.0)
    assert result[0, 0].tobytes() == values[3, 0].tobytes()


def test_shapes_that_do_not_fit_are_named() -> None:
    visible = visible_keys([[0, 1]], [0], [2], pool_slots=2)
    pool = random_array(2, 1, 16)
    with pytest.raises(EngineError, match="multiple of 16"):
        paged_attention(random_array(1, 1, 20), random_array(2, 1, 20), random_array(2, 1, 20), visible, scale=1.0)
    with pytest.raises(EngineError, match="float32"):
        paged_attention(random_array(1, 1, 16), pool.astype(np.float16), pool.astype(np.float16), visible, scale=1.0)
    with pytest.raises(EngineError, match="2 queries"):
        paged_attention(random_array(2, 1, 16), pool, pool, visible, scale=1.0)
    with pytest.raises(EngineError, match="scale above 0"):
        paged_attention(random_array(1, 1, 16), pool, pool, visible, scale=0.0)
