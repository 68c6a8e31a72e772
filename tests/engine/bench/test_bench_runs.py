"""Benchmarks on tiny models: what they count is exact, whatever the machine's speed."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from engine.bench import exercise, handoff, invariant_cost, static_continuous
from engine.bench.__main__ import main
from engine.bench.context import BenchContext
from engine.bench.meter import measure
from engine.bench.mlx_lm_baseline import BaselineRun, batch_generator, counted_rows, one_at_a_time, useful_rows
from engine.bench.overhead import split_steps
from engine.bench.slots import LENGTHS, measured_use, scaled
from engine.bench.workloads import repeating_prompt, text_prompt, text_requests
from engine.errors import SettingsError
from engine.model.load import LoadedModel
from engine.settings import EngineSettings
from fixtures.tiny_models import tiny_model


@cache
def model() -> LoadedModel:
    return tiny_model()


@pytest.mark.parametrize("admission", ["static", "continuous"])
def test_one_batch_of_eight_takes_6400_slot_steps_of_which_1725_are_useful(admission: str) -> None:
    context = BenchContext()
    requests = static_continuous.requests_of(context.tiny, LENGTHS)
    settings = static_continuous.settings_of(static_continuous.ARMS[admission], "native")
    run = measure(context.tiny, settings, requests)
    use = measured_use([step.committed_tokens for step in run.meter.steps], static_continuous.SLOTS)
    assert (use.slot_steps, use.useful) == (6400, 1725)


def test_with_a_queue_continuous_batching_needs_fewer_steps_and_static_what_arithmetic_says() -> None:
    lengths = static_continuous.queued(scaled(LENGTHS, 20), 3)
    context = BenchContext()
    requests = static_continuous.requests_of(context.tiny, lengths)
    steps = {
        name: len(measure(context.tiny, static_continuous.settings_of(admission, "native"), requests).meter.steps)
        for name, admission in static_continuous.ARMS.items()
    }
    assert steps["static"] == 3 * 40
    assert steps["continuous"] < 60


def test_a_measurement_accounts_for_every_row_and_token() -> None:
    requests = text_requests(model(), [5, 9, 7], [4, 3, 6])
    run = measure(model(), EngineSettings(policy="native", max_active=2), requests)
    assert run.output_tokens == 13 == sum(step.committed_tokens for step in run.meter.steps)
    assert run.packed_rows == useful_rows(requests) == 5 + 9 + 7 + 3 + 2 + 5
    assert sum(step.prefill_rows for step in run.meter.steps) == 21
    assert sorted(run.finished) == ["r0", "r1", "r2"]
    assert all(0 < run.time_to_first_token_s(name) <= run.end_to_end_s(name) for name in run.finished)
    assert run.tokens_per_s > 0
    assert run.decode_tokens_per_s > 0


def test_prompts_have_exact_lengths_and_are_told_apart_by_their_seed() -> None:
    prompts = [text_prompt(model(), length, seed) for length, seed in ((1, 0), (300, 1), (2000, 2), (300, 3))]
    assert [len(prompt) for prompt in prompts] == [1, 300, 2000, 300]
    assert prompts[1] != prompts[3]
    assert text_prompt(model(), 300, 1) == prompts[1]


def test_a_repeating_prompt_repeats_its_passage() -> None:
    prompt = repeating_prompt(model(), 97, seed=1, period=40)
    assert prompt == (text_prompt(model(), 40, 1) * 3)[:97]


def test_the_followers_prefill_shares_a_step_with_the_anchors_verification() -> None:
    anchor, follower = handoff.handoff(model(), (40, 30), 30)
    assert follower.arrival.after_request == anchor.id
    settings = EngineSettings(policy="native", max_active=2, speculation=handoff.SPECULATION)
    run = measure(model(), settings, [anchor, follower])
    shared = [step for step in run.meter.steps if step.prefill_rows == 30]
    assert [step.segments for step in shared] == [2]


def test_mixed_prompts_are_scaled_by_one_factor() -> None:
    requests = handoff.mixed(model(), handoff.MIXED_PROMPTS, 4, 16)
    assert [len(request.prompt) for request in requests] == [7, 66, 7, 62]


def test_a_short_pool_makes_requests_wait_for_blocks_and_a_large_one_for_slots() -> None:
    size = exercise.Size(12, 3, 20, 12, max_active=4, token_budget=48, kv_blocks=4, max_model_length=40)
    requests = exercise.requests_of(model(), size)
    told = {}
    for name, settings in exercise.arms_of(size, "native").items():
        run = measure(model(), settings, exercise.shortened(requests, settings.max_model_length))
        assert len(run.finished) == 12
        told[name] = exercise.verdict(exercise.waiting_shares(run.meter.steps, settings))
    assert told["as it is"].startswith("KV blocks")
    assert told["blocks in plenty"].startswith("slots")


def test_halving_the_limit_cuts_long_outputs_and_refuses_nobody() -> None:
    requests = exercise.requests_of(model(), exercise.UNSCALED)
    halved = exercise.shortened(requests, exercise.UNSCALED.max_model_length // 2)
    assert Counter(r.max_tokens for r in requests) == {16: 50, 512: 50}
    assert Counter(r.max_tokens for r in halved) == {16: 50, 224: 50}


@pytest.mark.parametrize("size", [exercise.UNSCALED, exercise.EIGHTH, exercise.SCALED, exercise.SMALLEST])
def test_in_every_size_long_requests_stay_longer_than_short_ones_and_prompts_fit(size: exercise.Size) -> None:
    half = size.max_model_length // 2
    assert size.short < half - size.prompt_tokens < size.long
    assert size.prompt_tokens + size.long <= size.max_model_length
    assert size.prompt_tokens <= size.token_budget
    assert size.max_model_length <= 16 * size.kv_blocks


def test_the_quick_exercise_tells_the_same_story_as_the_whole_one() -> None:
    """On the tiny model: the run as it is queues on blocks, the control on slots, and the halved run is over sooner."""
    bench = BenchContext(None, rounds=1, quick=True)
    (table,) = exercise.run(bench)
    assert table.title == "100 requests, tiny model, an eighth of the lengths"
    rows = {str(row[0]): row for row in table.rows}
    assert str(rows["as it is"][-1]).startswith("KV blocks")
    assert str(rows["blocks in plenty"][-1]).startswith("slots")
    assert int(rows["max_model_length halved"][1]) < int(rows["as it is"][1]) // 2
    assert int(rows["optimistic admission"][-2]) > 0


def test_batch_generator_and_generate_step_give_the_engines_tokens() -> None:
    requests = text_requests(model(), [6, 13, 9, 20], [5, 3, 6, 4])
    native = EngineSettings(policy="native", max_active=4)
    ours = {name: list(done.tokens) for name, done in measure(model(), native, requests).completions.items()}
    batched = batch_generator(model().model, requests, active=4, chunk_tokens=64)
    single = one_at_a_time(model().model, requests, chunk_tokens=64)
    assert batched.outputs == single.outputs == ours
    assert batched.output_tokens == 18
    assert set(batched.first_token_s) == set(ours)
    assert batched.computed_rows > useful_rows(requests), "padding, and a step ahead of the output"
    assert single.computed_rows >= useful_rows(requests)


def test_counting_rows_leaves_the_model_as_it_was() -> None:
    before = type(model().model)
    with pytest.raises(ZeroDivisionError), counted_rows(model().model, BaselineRun()):
        raise ZeroDivisionError
    assert type(model().model) is before


def test_a_step_is_taken_apart_without_changing_it() -> None:
    context = BenchContext()
    context.__dict__["model"] = model()
    splits = split_steps(context, "threshold:4", 3)
    for split in splits:
        assert 0 < split.linears < split.forward < split.step
        assert split.kv_memory > 0
        assert split.logits > 0
        assert 0 < split.python_share < 1


def test_the_cost_of_invariance_is_told_for_steps_a_load_and_memory(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(bytes(2**20))
    context = BenchContext(str(file), rounds=1, quick=True)
    context.__dict__["model"] = model()
    steps, load, memory = invariant_cost.run(context)
    assert [row[0] for row in steps.rows] == [1, 4, 8]
    assert [row[0] for row in load.rows] == list(invariant_cost.ARMS)
    told = {str(name): float(str(mebibytes)) for name, mebibytes in memory.rows}
    assert told["in the file"] == 1.0
    assert told["invariant: copies beside them"] == 0.0
    assert told["gemv and gemm: dense float32 copies beside them"] > 0.0


def test_a_benchmark_that_needs_a_model_says_so() -> None:
    with pytest.raises(SettingsError, match="--model"):
        _ = BenchContext().model
    result = CliRunner().invoke(main, ["overhead", "--quick"], env={"DIVTRACE_BENCH_MODEL": ""})
    assert result.exit_code == 2
    assert "--model" in result.output


def test_the_command_prints_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_continuous, "LENGTHS", (1, 2, 3, 4, 5, 6, 7, 8))
    result = CliRunner().invoke(main, ["static-continuous", "--quick", "--json"], env={"DIVTRACE_BENCH_MODEL": ""})
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    assert report["command"] == "python -m engine.bench static-continuous --rounds 1 --quick"
    assert report["tables"][0]["rows"][0][:4] == ["static", 8, 64, 36]
