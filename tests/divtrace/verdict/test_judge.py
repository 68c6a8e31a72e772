"""Rules of the verdict, one by one, on findings made by hand from a real pair's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from divtrace.origin.records import Circumstance, OriginKind, OriginResult, SiteClass
from divtrace.proof.prove import prove
from divtrace.proof.records import Causality, ProofResult, ReplayControl, Subject
from divtrace.verdict.records import Confidence, Nature, Verdict
from divtrace.verdict.verdict import judge
from tests.divtrace.proof.pairs import flipping_pair, opened


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[OriginResult, ProofResult]:
    with opened(*flipping_pair(tmp_path_factory.mktemp("pair"))) as pair:
        return pair.origins, prove(pair.counterfactuals())


def with_kind(origins: OriginResult, kind: OriginKind) -> OriginResult:
    return replace(origins, origins=tuple(replace(origin, kind=kind) for origin in origins.origins))


def with_circumstances(origins: OriginResult, *circumstances: Circumstance) -> OriginResult:
    return replace(origins, origins=tuple(replace(origin, circumstances=circumstances) for origin in origins.origins))


def test_both_ways_and_by_both_tests_is_proven_rounding(found: tuple[OriginResult, ProofResult]) -> None:
    judged = judge(*found)
    assert (judged.verdict, judged.nature, judged.confidence) == (
        Verdict.KERNEL_PATH,
        Nature.ROUNDING,
        Confidence.PROVEN,
    )
    assert "swapping the K/V rows" in judged.reason


def test_a_joint_cause_tells_what_undoes_it_from_what_brings_it_about(
    found: tuple[OriginResult, ProofResult],
) -> None:
    origins, proof = found
    candidates = (proof.candidates[0], replace(proof.candidates[0], step_a=90, step_b=90))
    joint = replace(proof, candidates=candidates, causality=Causality.JOINT, cause=(0,), sufficient=((0, 1),))
    reason = judge(origins, joint).reason
    assert f"undoing step {candidates[0].step_b} in run B is enough" in reason
    assert "in run A, 2 steps together bring" in reason
    assert "K/V rows of the same steps" in reason
    assert "K/V rows of that step" in judge(origins, proof).reason


def test_a_swap_that_disagrees_lowers_confidence_and_is_said(found: tuple[OriginResult, ProofResult]) -> None:
    origins, proof = found
    judged = judge(origins, replace(proof, swap_agrees=False))
    assert judged.confidence is Confidence.SHOWN
    assert "does not come out the same" in judged.reason


def test_one_way_alone_is_shown_and_not_proven(found: tuple[OriginResult, ProofResult]) -> None:
    origins, proof = found
    one_way = replace(proof, trials=proof.trials[:1], causality=Causality.NECESSARY, swap_agrees=None)
    assert judge(origins, one_way).confidence is Confidence.SHOWN


@pytest.mark.parametrize("causality", [Causality.EITHER, Causality.JOINT, Causality.NECESSARY, Causality.ONE])
def test_each_kind_of_cause_has_its_own_reason(found: tuple[OriginResult, ProofResult], causality: Causality) -> None:
    origins, proof = found
    reasons = {judge(origins, replace(proof, causality=kind)).reason for kind in Causality}
    assert judge(origins, replace(proof, causality=causality)).reason in reasons
    assert len(reasons) == len(Causality)


@pytest.mark.parametrize(
    ("circumstances", "verdict"),
    [
        ((Circumstance.RECOMPUTE, Circumstance.SHARED_BATCH), Verdict.PREEMPTION_RECOMPUTE),
        ((Circumstance.PREFIX_REUSE, Circumstance.CHUNK_BOUNDARY), Verdict.PREFIX_CACHE_REUSE),
        ((Circumstance.CHUNK_BOUNDARY,), Verdict.CHUNK_BOUNDARY),
        ((Circumstance.SHARED_BATCH,), Verdict.KERNEL_PATH),
        ((), Verdict.KERNEL_PATH),
    ],
)
def test_circumstances_name_the_kind_of_rounding(
    found: tuple[OriginResult, ProofResult], circumstances: tuple[Circumstance, ...], verdict: Verdict
) -> None:
    origins, proof = found
    assert judge(with_circumstances(origins, *circumstances), proof).verdict is verdict


def test_paths_of_attention_alone_are_an_attention_split(found: tuple[OriginResult, ProofResult]) -> None:
    origins, proof = found
    suspects = tuple(replace(s, site_class=SiteClass.ATTENTION) for s in origins.origins[0].suspects)
    attention = replace(origins, origins=(replace(origins.origins[0], suspects=suspects),))
    assert judge(attention, proof).verdict is Verdict.ATTENTION_SPLIT


@pytest.mark.parametrize("kind", [OriginKind.WRONG_INPUT, OriginKind.NEVER_WRITTEN, OriginKind.CHANGED_AFTER_WRITING])
def test_a_row_that_does_not_belong_is_a_bug_whatever_trials_say(
    found: tuple[OriginResult, ProofResult], kind: OriginKind
) -> None:
    origins, proof = found
    judged = judge(with_kind(origins, kind), proof)
    assert (judged.verdict, judged.nature) == (Verdict.STATE_CORRUPTION, Nature.BUG)


def test_equal_logits_and_another_token_is_selection(found: tuple[OriginResult, ProofResult]) -> None:
    judged = judge(with_kind(found[0], OriginKind.SELECTION), None)
    assert (judged.verdict, judged.nature) == (Verdict.SELECTION, Nature.BUG)


def test_decoys_are_no_cause_and_no_verdict(found: tuple[OriginResult, ProofResult]) -> None:
    origins, proof = found
    judged = judge(origins, replace(proof, causality=Causality.NONE, trials=()))
    assert (judged.verdict, judged.confidence) == (Verdict.NOT_DECIDABLE, Confidence.NONE)
    assert "not the cause" in judged.reason


def test_a_run_that_does_not_repeat_itself_is_not_reproducible(found: tuple[OriginResult, ProofResult]) -> None:
    origins, proof = found
    failed = replace(proof, controls=(ReplayControl("A", False, 9, 3, "logits", None, 0.0),))
    judged = judge(origins, failed)
    assert judged.verdict is Verdict.NOT_REPRODUCIBLE
    assert "step 3" in judged.reason
    assert judge(origins, failed, ("blas.num_threads",)).verdict is Verdict.NOT_DECIDABLE


def test_dependence_on_rows_is_rounding_and_says_so(found: tuple[OriginResult, ProofResult]) -> None:
    origins, proof = found
    judged = judge(replace(origins, candidates=()), replace(proof, subject=Subject.ROW_COUNTS))
    assert (judged.verdict, judged.nature) == (Verdict.KERNEL_PATH, Nature.ROUNDING)
    assert "row-independent" in judged.reason


def test_no_path_and_no_proof_asks_for_more(found: tuple[OriginResult, ProofResult]) -> None:
    judged = judge(replace(found[0], candidates=()), None)
    assert judged.verdict is Verdict.NOT_DECIDABLE
