"""One pair of every kind of planted fault: blame names what was planted. The whole corpus: `tests.faults.score`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.case import Case, run_arm
from tests.faults.corpus import corpus
from tests.faults.kernels import fault_kernels
from tests.faults.score import score_case


def one_of_each_kind() -> list[Case]:
    found: dict[str, Case] = {}
    for case in corpus(smollm2=False):
        found.setdefault(case.kind, case)
    return list(found.values())


@pytest.mark.parametrize("case", one_of_each_kind(), ids=lambda case: case.kind.replace(" ", "-"))
def test_blame_names_what_was_planted(case: Case, tmp_path: Path) -> None:
    score = score_case(case, tmp_path)
    assert score.verdict is score.truth.verdict, score.reason
    assert score.origin_right, f"planted {score.truth}, blamed {score.blamed}"


def test_the_corpus_is_large_and_its_cases_have_names_of_their_own() -> None:
    cases = corpus()
    assert len(cases) >= 60
    assert len({(case.kind, case.name) for case in cases}) == len(cases)
    assert len({case.kind for case in cases}) >= 24


def test_a_case_without_its_fault_shows_nothing() -> None:
    """The plain arms of a pair that differ in nothing but the fault give the same tokens: the fault makes the flip."""
    case = next(c for c in corpus(smollm2=False) if c.kind == "path switch")
    with fault_kernels():
        a, b = case.arms(0)
        assert run_arm(a).outputs == run_arm(type(a)(b.loaded, b.settings, b.requests)).outputs
