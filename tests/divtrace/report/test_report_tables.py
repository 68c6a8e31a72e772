"""Tables and the proof line: what was re-run, what it wrote, and nothing that was not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from divtrace.report import write_report
from divtrace.report.chain import chain
from divtrace.report.proof_words import proof_line
from divtrace.report.tables import drafts_table, origin_table, requests_table, settings_table, trials_table
from divtrace.trace.reader import Trace, open_trace
from divtrace.verdict.blame import blame
from divtrace.verdict.records import BlameResult
from tests.divtrace.report.proofs import proven
from tests.divtrace.trace.builders import example_run


def test_the_proof_line_says_what_each_re_run_wrote(suspected: BlameResult) -> None:
    line = proof_line(proven(suspected))
    assert line.startswith("Proven by re-running, both ways. ")
    assert "Run B again, with run A’s kernels in step 1 and nothing else changed, writes “<13>”, as run A did." in line
    assert "Run A again, with run B’s kernels in step 1 and nothing else changed, writes “<14>”, as run B did." in line
    assert "So step 1 is necessary and sufficient." in line
    assert "Swapping the K/V rows of that step instead" in line
    assert "2 unchanged replays gave every bit again" in line


def test_every_trial_is_a_row_with_its_margins(suspected: BlameResult) -> None:
    assert trials_table(suspected) is None
    table = trials_table(proven(suspected))
    assert table is not None
    restore, induce, swap, neutral = table.rows
    assert restore[:3] == ("B", "run A’s kernels", "step 1")
    assert restore[4:] == ("“<13>”", "✓ yes", "+0.500000", "−0.250000", "−0.750000")
    assert induce[4:6] == ("“<14>”", "✓ yes")
    assert "K/V rows" in swap[1]
    assert swap[3] == "–"
    assert "✓ they agree" in neutral


def test_a_trial_that_changed_nothing_is_a_row_too_and_no_proof(suspected: BlameResult) -> None:
    result = proven(suspected)
    assert result.proof is not None
    failed = tuple(replace(trial, chosen_token=trial.own_token) for trial in result.proof.trials)
    result = replace(result, proof=replace(result.proof, trials=failed, controls=(), swap_agrees=None))
    table = trials_table(result)
    assert table is not None
    assert {row[5] for row in table.rows[:3]} == {"✗ no"}
    assert "writes" not in proof_line(result)


def test_the_chain_leads_from_the_batch_over_the_carriers_to_the_flip(suspected: BlameResult) -> None:
    origin, carriers, flip = chain(suspected)
    assert origin.lines[0] == "Joined the batch: guest’s prefill of 2 rows."
    assert "3 rows instead of 1" in origin.lines[1]
    assert carriers.where == "position 4"
    assert "1 carrier + 1 row of origins = 2 differing rows." in carriers.lines[0]
    assert flip.lines[0] == "A wrote “<13>”, B wrote “<14>”."
    assert flip.lines[1].startswith("Gap of “<13>”: +0.001000 in A, gap drift −0.00")
    assert origin.lines[2].startswith("First K/V difference: layer 0, position 3")


def test_the_origin_table_holds_both_batches(suspected: BlameResult) -> None:
    table = origin_table(suspected)
    assert table is not None
    assert [(row[0], row[2], row[3]) for row in table.rows] == [
        ("A", "anchor", "decode"),
        ("B", "anchor", "decode"),
        ("B", "guest", "prefill"),
    ]


def test_settings_and_requests_are_listed_with_what_differs(suspected: BlameResult) -> None:
    assert ("settings.max_active", "1", "2", "batching") in settings_table(suspected).rows
    anchor, guest = requests_table(suspected).rows
    assert (anchor[0], anchor[4], anchor[5], anchor[6]) == ("anchor", "6", "“<13>”", "“<14>”")
    assert (guest[0], guest[4]) == ("guest", "–")


def test_draft_acceptance_is_a_table_where_something_was_proposed(suspected: BlameResult, tmp_path: Path) -> None:
    assert drafts_table(suspected) is None
    trace = open_trace(example_run().write(tmp_path / "x.h5"))
    table = drafts_table(blame(trace, trace))
    assert table is not None
    assert table.rows == (("anchor", "1 of 2", "50 %", "1 of 2", "50 %"),)


def test_a_proven_report_shows_its_trials(suspected: BlameResult, flip: tuple[Trace, Trace], tmp_path: Path) -> None:
    html = write_report(tmp_path / "report.html", *flip, proven(suspected)).read_text(encoding="utf-8")
    assert "Re-runs (counterfactuals)" in html
    assert "tone-rounding" in html
    assert '"is_cause":true' in html
