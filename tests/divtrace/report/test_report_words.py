"""The words of a report: one name for one set, what is necessary and what is enough, what is not shown, what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from divtrace.report.advice import what_next
from divtrace.report.build import build_pair, build_single
from divtrace.report.chain import chain
from divtrace.report.evidence import origin_of, quoted_text, who_joined
from divtrace.report.glossary import glossary
from divtrace.report.proof_words import cause_roles, is_exact, proof_limits, proof_line
from divtrace.report.story import tell
from divtrace.report.tables import trials_table
from divtrace.trace.reader import Trace
from divtrace.verdict.blame import blame
from divtrace.verdict.records import BlameResult, Nature, Verdict
from tests.divtrace.report.pairs import write_flip
from tests.divtrace.report.proofs import jointly_proven, proven


@pytest.fixture
def flip(tmp_path: Path) -> Iterator[tuple[Trace, Trace]]:
    with write_flip(tmp_path / "serial.h5", False) as a, write_flip(tmp_path / "batched.h5", True) as b:
        yield a, b


@pytest.fixture
def suspected(flip: tuple[Trace, Trace]) -> BlameResult:
    return blame(*flip)


def test_a_joint_proof_says_what_one_step_does_and_what_takes_several(suspected: BlameResult) -> None:
    line = proof_line(jointly_proven(suspected))
    assert (
        "with run B’s kernels in step 1, still writes “<13>”; with those of steps 1 and 2 together it writes “<14>”"
        in line
    )
    assert "So step 1 is necessary, and these 2 steps together are sufficient." in line
    assert "K/V rows of the same steps" in line
    assert "alone" not in line


def test_every_origin_has_its_role(suspected: BlameResult) -> None:
    roles = cause_roles(jointly_proven(suspected))
    assert roles == (
        "3 origins: steps 1, 2 and 3 of run B.",
        "Undoing step 1 by itself brings “<13>” back.",
        "Bringing “<14>” about in run A takes steps 1 and 2 together.",
        "Step 3 is not needed: the outcome changes without.",
    )
    assert cause_roles(proven(suspected)) == ()


def test_one_set_of_steps_has_one_name_on_the_page(suspected: BlameResult) -> None:
    result = jointly_proven(suspected)
    table = trials_table(result)
    assert table is not None
    assert [row[2] for row in table.rows] == ["step 1", "step 1", "steps 1 and 2", "steps 1 and 2"]
    assert "steps 1 and 2" in proof_line(result)
    assert any("steps 1 and 2" in line for line in chain(result)[0].lines)


def test_what_the_proof_does_not_show_is_said_with_its_numbers(suspected: BlameResult) -> None:
    result = jointly_proven(suspected)
    limits = proof_limits(result)
    assert "the gap of its own token becomes -0.250000, where run A itself has -0.250000; the other steps" in limits
    assert "the gap of its own token becomes -0.125000, where run B itself has -0.500000" in limits
    assert "With run B’s K/V rows of the same steps run A has run B’s logits bit for bit." in limits
    assert not is_exact(result)
    table = trials_table(result)
    assert table is not None
    assert limits in table.note
    assert any("not always its exact logits" in answer.answer for answer in tell(result).answers)


def test_exact_re_runs_are_called_exact(suspected: BlameResult) -> None:
    limits = proof_limits(proven(suspected))
    assert "bit for bit" in limits
    assert "not its exact logits" not in limits
    assert proof_limits(suspected) == ""


def test_a_piece_of_a_prompt_is_not_called_the_prompt(suspected: BlameResult) -> None:
    origin = origin_of(suspected)
    assert origin is not None
    assert who_joined(suspected, origin) == "guest’s prefill of 2 rows"
    longer = tuple(
        replace(request, prompt_tokens=9) if request.id_b == "guest" else request for request in suspected.diff.requests
    )
    cut = replace(suspected, diff=replace(suspected.diff, requests=longer))
    assert who_joined(cut, origin) == "the first 2 of guest’s 9 prompt rows"


def test_spaces_at_the_ends_of_a_token_are_seen_and_explained(suspected: BlameResult) -> None:
    assert quoted_text(" a b  ") == "“␣a b␣␣”"
    assert quoted_text("   ") == "“␣␣␣”"
    assert "is a space" not in tell(suspected).reading
    assert suspected.origins is not None
    token = replace(suspected.origins.token_a, text=" left")
    spaced = replace(suspected, origins=replace(suspected.origins, token_a=token))
    assert tell(spaced).reading.startswith("␣ is a space.")
    assert "count from 0" in tell(spaced).reading


@pytest.mark.parametrize("verdict", list(Verdict))
def test_every_verdict_says_what_to_do_next(suspected: BlameResult, verdict: Verdict) -> None:
    for nature in Nature:
        for advice in ((), ("record with --audit 1",)):
            assert what_next(replace(suspected, verdict=verdict, nature=nature, next_time=advice)).endswith(".")


def test_a_suspicion_is_to_be_proven_first_and_a_bug_is_not_waved_away(suspected: BlameResult) -> None:
    assert "without --no-proof" in what_next(suspected)
    broken = replace(suspected, nature=Nature.BUG, next_time=())
    assert "Nothing is to be mended" not in what_next(broken)


def test_the_glossary_holds_the_words_of_this_report_and_no_others(flip: tuple[Trace, Trace]) -> None:
    words = dict(glossary(build_pair(*flip, blame(*flip))))
    assert {"Prefill", "Decode", "Origin", "Gap"} <= set(words)
    assert "Verify" not in words
    assert "Origin" not in dict(glossary(build_single(flip[0])))


def test_a_mark_knows_its_run_and_who_joined_there(flip: tuple[Trace, Trace]) -> None:
    focus = build_pair(*flip, blame(*flip)).focus
    assert focus is not None
    assert [(mark.run, mark.joined) for mark in focus.origins] == [(1, ["guest"])]
