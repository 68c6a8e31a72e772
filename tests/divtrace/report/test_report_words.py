"""The words of a report: one name for one set, what is necessary and what is enough, what is not shown, what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from divtrace.proof.records import Causality
from divtrace.reference.records import Agreement, LogitError, ReferenceResult
from divtrace.report.advice import what_next, what_was_checked
from divtrace.report.both_ways import both_ways
from divtrace.report.build import build_pair, build_single
from divtrace.report.chain import chain
from divtrace.report.evidence import origin_of, quoted_text, who_joined
from divtrace.report.glossary import glossary
from divtrace.report.proof_words import cause_roles, is_exact, proof_limits, proof_line
from divtrace.report.reference_words import reference_line
from divtrace.report.retry import Retry, retry_commands
from divtrace.report.sites import site_counts
from divtrace.report.story import tell
from divtrace.report.tables import trials_table
from divtrace.trace.reader import Trace
from divtrace.verdict.blame import blame
from divtrace.verdict.records import BlameResult, Confidence, Nature, Verdict
from tests.divtrace.report.proofs import jointly_proven, proven


def test_a_joint_proof_says_what_one_step_does_and_what_takes_several(suspected: BlameResult) -> None:
    line = proof_line(jointly_proven(suspected))
    assert (
        "with run B’s kernels in step 1, still writes “<13>”; with those of steps 1 and 2 together it writes “<14>”"
        in line
    )
    assert "Undoing step 1 by itself brings “<13>” back. Step 1 by itself does not bring “<14>” about" in line
    assert "fewer may do" not in line
    assert "K/V rows of the same steps" in line
    assert "alone" not in line


def test_every_origin_has_its_role(suspected: BlameResult) -> None:
    roles = cause_roles(jointly_proven(suspected))
    assert roles == (
        "3 origins: steps 1, 2 and 3 of run B.",
        "Undoing step 1 by itself brings “<13>” back.",
        "Step 1 by itself does not bring “<14>” about; with 1 more step (2) it does.",
        "Step 3 is not needed: the outcome changes without.",
    )
    assert cause_roles(proven(suspected)) == ()


def test_one_set_of_steps_has_one_name_on_the_page(suspected: BlameResult) -> None:
    result = jointly_proven(suspected)
    table = trials_table(result)
    assert table is not None
    assert [row[2] for row in table.rows] == ["step 1", "step 1", "steps 1 and 2", "steps 1 and 2"]
    assert "steps 1 and 2" in proof_line(result)
    assert any("with 1 more step (2) it does" in line for line in chain(result)[0].lines)


def test_what_the_proof_does_not_show_is_said_with_its_numbers(suspected: BlameResult) -> None:
    result = jointly_proven(suspected)
    limits = proof_limits(result)
    assert "the gap of its own token becomes −0.250000, where run A itself has −0.250000; the other steps" in limits
    assert "the gap of its own token becomes −0.125000, where run B itself has −0.500000" in limits
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
    assert what_was_checked(broken) == ""


def test_the_glossary_holds_the_words_of_this_report_and_no_others(flip: tuple[Trace, Trace]) -> None:
    words = dict(glossary(build_pair(*flip, blame(*flip))))
    assert {"Prefill", "Decode", "Origin", "Gap"} <= set(words)
    assert "Verify" not in words
    assert "Origin" not in dict(glossary(build_single(flip[0])))


def test_a_mark_knows_its_run_and_who_joined_there(flip: tuple[Trace, Trace]) -> None:
    focus = build_pair(*flip, blame(*flip)).focus
    assert focus is not None
    assert [(mark.run, mark.joined) for mark in focus.origins] == [(1, ["guest"])]


def test_a_headline_of_a_joint_cause_blames_no_step_alone(suspected: BlameResult) -> None:
    joint = jointly_proven(suspected)
    headline = tell(joint).headline
    assert "It began 2 steps earlier, in step 1 of run B" in headline
    assert headline.endswith("Step 1 by itself does not bring “<14>” about; with 1 more step (2) it does.")
    assert "because" not in headline
    assert both_ways(proven(suspected)) == ()


def test_a_set_that_may_not_be_the_smallest_is_not_called_needed(suspected: BlameResult) -> None:
    joint = jointly_proven(suspected)
    assert joint.proof is not None
    cut = replace(joint, proof=replace(joint.proof, note="the set may not be the smallest"))
    assert both_ways(cut)[-1].endswith("with 1 more step (2) it does (fewer may do).")


def test_what_no_re_run_showed_is_not_said(suspected: BlameResult) -> None:
    joint = jointly_proven(suspected)
    assert joint.proof is not None
    untried = replace(joint, proof=replace(joint.proof, trials=(joint.proof.trials[0], joint.proof.trials[2])))
    assert both_ways(untried)[-1] == "Steps 1 and 2 together can bring “<14>” about."
    none_did = replace(joint.proof, trials=joint.proof.trials[:2], sufficient=(), causality=Causality.NECESSARY)
    assert both_ways(replace(joint, proof=none_did)) == (
        "Undoing step 1 by itself brings “<13>” back.",
        "Step 1 by itself does not bring “<14>” about, nor does anything else that was tried.",
    )


def test_several_steps_that_do_both_are_said_to_do_both(suspected: BlameResult) -> None:
    joint = jointly_proven(suspected)
    assert joint.proof is not None
    restore, _, induce, rows = joint.proof.trials
    failed_rows = replace(rows, chosen_token=rows.own_token)
    trials = (replace(restore, candidates=(0, 1)), induce, failed_rows)
    assert both_ways(replace(joint, proof=replace(joint.proof, trials=trials, cause=(0, 1)))) == (
        "Undoing steps 1 and 2 together brings “<13>” back.",
        "Steps 1 and 2 together can bring “<14>” about.",
    )


def test_either_of_several_causes_can_do_it(suspected: BlameResult) -> None:
    joint = jointly_proven(suspected)
    assert joint.proof is not None
    restore, _, induce, _ = joint.proof.trials
    trials = (replace(restore, candidates=(0, 1)), *(replace(induce, candidates=(one,)) for one in (0, 1)))
    proof = replace(joint.proof, trials=trials, cause=(0, 1), sufficient=((0,), (1,)), causality=Causality.EITHER)
    assert both_ways(replace(joint, proof=proof)) == (
        "Undoing steps 1 and 2 together brings “<13>” back.",
        "Each of steps 1 and 2 can bring “<14>” about by itself.",
    )
    by_row_counts = replace(joint, proof=replace(proof, trials=()))
    assert both_ways(by_row_counts) == ()
    assert "the first of 2 steps that matter" in tell(by_row_counts).headline


def test_float64_says_whose_choice_it_makes_and_that_both_only_round(suspected: BlameResult) -> None:
    assert reference_line(suspected) == ""
    assert suspected.origins is not None
    token = suspected.origins.token_b
    errors = (
        LogitError(token, 1.0, 1.25, 1.125, 0.25, 0.125, 2.0, 1.0),
        LogitError(token, 1.0, 0.5, 0.75, -0.5, -0.25, -4.0, -2.0),
    )
    found = replace(proven(suspected), reference=ReferenceResult(Agreement.B, token, errors, -0.0625, 6))
    line = reference_line(found)
    assert line.startswith("It chooses “<14>”, as run B did, by a gap of 0.0625; both runs are within rounding (")
    assert line.endswith("(logits off by up to 0.5 in A, 0.25 in B).")
    assert "rounding" not in reference_line(replace(found, nature=Nature.BUG))
    assert tell(found).reference == line


def test_identical_is_not_called_exact_and_checks_are_named(suspected: BlameResult) -> None:
    result = proven(suspected)
    assert "identical, which is not to say more exact" in what_next(result)
    assert "whose result does not depend on how many rows are in the call" in what_next(result)
    assert "Not checked: other decisions" in what_was_checked(result)
    assert "these kernels change the outcome" in what_was_checked(result)
    seen = replace(result, confidence=Confidence.SUSPECTED)
    assert "these kernels change the outcome" not in what_was_checked(seen)


def test_commands_name_these_files_and_record_their_workload_again(flip: tuple[Trace, Trace]) -> None:
    a, b = flip
    assert retry_commands(a, b) == Retry(f"{a.path} {b.path}")
    for trace in flip:
        trace.header = replace(trace.header, workload={"arms": {"serial": {}, "batched": {}}})
    found = retry_commands(a, b)
    assert found.diff == "divtrace diff same/serial.h5 same/batched.h5"
    assert found.record.startswith("python -c 'import divtrace")
    assert f'"{a.path}"' in found.record
    told = what_next(proven(blame(a, b)), found)
    assert f"`{found.record}`" in told
    assert f"`{found.diff}`" in told
    a.path = "case.zip/a/serial.h5"
    assert retry_commands(a, b) == Retry()


def test_sites_that_only_some_steps_changed_are_named(suspected: BlameResult) -> None:
    joint = jointly_proven(suspected)
    assert joint.proof is not None
    assert joint.origins is not None
    assert site_counts(joint.proof, joint.origins) == ""
    first, *others = joint.proof.candidates
    head = replace(first.sites[0], site="lm_head")
    proof = replace(joint.proof, candidates=(replace(first, sites=(*first.sites, head)), *others))
    count = len(first.sites)
    words = f"Sites a step: {count} in steps 2 and 3; {count + 1} in step 1"
    assert site_counts(proof, joint.origins).startswith(f"{words} (the head, lm_head, too).")
    inside = tuple(replace(origin, crossings=()) for origin in joint.origins.origins)
    assert site_counts(proof, replace(joint.origins, origins=inside)).startswith(f"{words} (lm_head too).")
