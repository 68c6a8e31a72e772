"""A small run of the fuzzer, and seeds that failed once. In full: `python -m tests.divtrace.trace.fuzz_reader`."""

from __future__ import annotations

import pytest

from tests.divtrace.trace.fuzz_reader import run_batch

FAILED_ONCE = (2602, 2872, 4417, 4538, 5432, 9131)
FILES = 200


@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_a_seed_that_failed_once_is_handled(seed: int) -> None:
    assert run_batch(range(seed, seed + 1)) == []


def test_mutated_files_end_in_one_sentence_or_in_what_they_held() -> None:
    assert run_batch(range(FILES)) == []
