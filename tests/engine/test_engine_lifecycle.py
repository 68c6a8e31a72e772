"""A request's life in the engine: arrivals, limits, ends of every kind, audits; nothing is left behind."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from engine.engine import Engine
from engine.errors import EngineError, SettingsError
from engine.model.load import LoadedModel
from engine.model.tokenizer import Tokenizer
from engine.observer import RunEnding
from engine.request import Arrival, FinishReason, Request, SamplingParams
from engine.settings import EngineSettings
from engine.workload import build_requests, parse_workload
from fixtures.tiny_models import tiny_model
from tests.engine.collector import Collector


@cache
def model() -> LoadedModel:
    return tiny_model()


def prompt(length: int, first: int = 0) -> tuple[int, ...]:
    return tuple((first + 3 * index) % 256 for index in range(length))


def run(requests: Sequence[Request], **settings: Any) -> tuple[Engine, Collector]:
    """Run requests to their end; every step's K/V bookkeeping is checked."""
    collector = Collector()
    values: dict[str, Any] = {"policy": "gemv", "audit_every": 1} | settings
    with Engine(model(), EngineSettings(**values), (collector,)) as engine:
        for request in requests:
            engine.submit(request)
        engine.run()
    return engine, collector


def steps_of(collector: Collector, request_id: str) -> list[int]:
    return [e.batch.step for e in collector.events for s in e.batch.segments if s.request_id == request_id]


def lifecycle(collector: Collector, request_id: str) -> list[str]:
    return [event.kind for e in collector.events for event in e.lifecycle if event.request_id == request_id]


def test_every_request_produces_all_of_its_tokens_and_gives_its_blocks_back() -> None:
    engine, collector = run([Request(f"r{i}", prompt(5 + i), 4 + i) for i in range(6)], max_active=2)
    assert [len(c.tokens) for c in engine.completions.values()] == [4, 5, 6, 7, 8, 9]
    assert {c.finish_reason for c in engine.completions.values()} == {FinishReason.LENGTH}
    assert engine.store.state().blocks_used == 0
    assert collector.ending == RunEnding()
    assert all(lifecycle(collector, f"r{i}") == ["admitted", "finished"] for i in range(6))


ENDINGS = [
    (KeyboardInterrupt(), RunEnding(interrupted=True)),
    (EngineError("request 'a' cannot be scheduled."), RunEnding(failure="request 'a' cannot be scheduled.")),
    (ValueError("odd\nmore"), RunEnding(failure="ValueError: odd")),
    (AssertionError(), RunEnding(failure="AssertionError: no message")),
]


@pytest.mark.parametrize(("error", "ending"), ENDINGS, ids=lambda value: type(value).__name__)
def test_observers_hear_whether_a_run_was_interrupted_or_failed(error: BaseException, ending: RunEnding) -> None:
    collector = Collector()

    def fail_after_a_step() -> None:
        with Engine(model(), EngineSettings(policy="gemv"), (collector,)) as engine:
            engine.submit(Request("a", prompt(4), 1))
            engine.step()
            raise error

    with pytest.raises(type(error)):
        fail_after_a_step()
    assert collector.ending == ending
    assert collector.completions["a"].finish_reason is FinishReason.LENGTH


def test_times_of_a_completion_are_in_order() -> None:
    engine, _ = run([Request("a", prompt(5), 4), Request("b", prompt(5), 4)], max_active=1)
    for done in engine.completions.values():
        assert done.scheduled_s is not None
        assert done.first_token_s is not None
        assert 0.0 <= done.queued_s <= done.scheduled_s <= done.first_token_s <= done.finished_s
    first, second = engine.completions["a"], engine.completions["b"]
    assert second.scheduled_s is not None
    assert second.scheduled_s >= first.finished_s


def test_a_request_arrives_at_its_step() -> None:
    _, collector = run([Request("a", prompt(4), 12), Request("b", prompt(4), 2, arrival=Arrival(at_step=5))])
    assert steps_of(collector, "b")[0] == 5


def test_idle_steps_are_not_counted() -> None:
    engine, collector = run([Request("late", prompt(4), 3, arrival=Arrival(at_step=1000))])
    assert engine.step_number == 3
    assert steps_of(collector, "late") == [0, 1, 2]


def test_a_request_arrives_after_anothers_tokens() -> None:
    requests = [Request("anchor", prompt(4), 9), Request("follower", prompt(6), 2, arrival=Arrival(0, "anchor", 3))]
    _, collector = run(requests)
    tokens_before = [s for s in steps_of(collector, "anchor") if s < steps_of(collector, "follower")[0]]
    assert len(tokens_before) == 3


def test_an_arrival_that_can_never_come_is_refused_and_the_rest_runs() -> None:
    requests = [Request("a", prompt(4), 2), Request("b", prompt(4), 2, arrival=Arrival(0, "a", 5))]
    engine, collector = run(requests)
    assert engine.completions["b"].finish_reason is FinishReason.REFUSED
    assert engine.completions["b"].detail == "it waits for 5 tokens of 'a', which will never commit them"
    assert engine.completions["a"].finish_reason is FinishReason.LENGTH
    assert collector.submitted == ["a", "b"]


def test_what_can_never_fit_is_refused_with_the_numbers_and_the_rest_runs() -> None:
    engine, collector = run([Request("big", prompt(50), 50), Request("small", prompt(4), 2)], kv_blocks=4)
    big = engine.completions["big"]
    assert (big.finish_reason, big.tokens) == (FinishReason.REFUSED, ())
    assert "needs up to 7 KV blocks of 16 tokens, the pool has 4" in big.detail
    assert engine.completions["small"].finish_reason is FinishReason.LENGTH
    assert lifecycle(collector, "big") == ["refused"]


@pytest.mark.parametrize("where", ["running", "waiting", "pending"])
def test_a_request_can_be_cancelled_wherever_it_stands(where: str) -> None:
    arrival = Arrival(at_step=50) if where == "pending" else Arrival()
    first = Request("first", prompt(20), 20)
    victim = Request("victim", prompt(20, 9), 20, arrival=arrival)
    collector = Collector()
    limits = EngineSettings(policy="gemv", max_active=2 if where == "running" else 1, audit_every=1)
    with Engine(model(), limits, (collector,)) as engine:
        engine.submit(first)
        engine.submit(victim)
        for _ in range(4):
            engine.step()
        tokens = len(engine.states["victim"].output)
        engine.cancel("victim")
        engine.run()
    done = engine.completions["victim"]
    assert done.finish_reason is FinishReason.CANCELLED
    assert len(done.tokens) == tokens == (4 if where == "running" else 0)
    assert collector.submitted == ["first", "victim"], "observers know every request that ends"
    assert lifecycle(collector, "victim")[-1] == "cancelled"
    assert len(engine.completions["first"].tokens) == 20
    assert engine.store.state().blocks_used == 0


def test_cancelling_twice_or_after_the_end_changes_nothing() -> None:
    with Engine(model(), EngineSettings(policy="gemv")) as engine:
        engine.submit(Request("a", prompt(4), 2))
        engine.run()
        engine.cancel("a")
        engine.cancel("a")
    assert engine.completions["a"].finish_reason is FinishReason.LENGTH


def test_cancelling_nobody_is_an_error() -> None:
    with Engine(model(), EngineSettings(policy="gemv")) as engine, pytest.raises(EngineError, match="no request 'x'"):
        engine.cancel("x")


def test_cancel_at_step_ends_a_request_before_that_step() -> None:
    engine, collector = run([Request("a", prompt(4), 20, cancel_at_step=3), Request("b", prompt(4), 6)])
    assert steps_of(collector, "a") == [0, 1, 2]
    assert len(engine.completions["a"].tokens) == 3


def test_a_request_that_is_late_ends_with_what_it_has() -> None:
    requests = [Request("late", prompt(4), 400, timeout_s=1e-9), Request("b", prompt(4), 3)]
    engine, collector = run(requests)
    assert engine.completions["late"].finish_reason is FinishReason.TIMEOUT
    assert "exceeded its 1e-09 s" in engine.completions["late"].detail
    assert lifecycle(collector, "late")[-1] == "timed_out"
    assert len(engine.completions["b"].tokens) == 3
    assert engine.store.state().blocks_used == 0


def test_samples_of_one_prompt_share_its_blocks_and_differ_by_their_draws() -> None:
    spec = parse_workload(
        {
            "model": "tiny",
            "requests": [
                {
                    "id": "s",
                    "prompt_tokens": list(prompt(40)),
                    "max_tokens": 8,
                    "samples": 4,
                    "sampling": {"temperature": 1.0, "seed": 5},
                }
            ],
        },
        "here",
    )
    tokenizer: Tokenizer = model().tokenizer
    engine, collector = run(build_requests(spec, tokenizer), prefix_cache=True)
    assert set(engine.completions) == {"s/0", "s/1", "s/2", "s/3"}
    prompt_rows = sum(s.rows for e in collector.events for s in e.batch.segments if s.kind == "prefill")
    assert prompt_rows == 40 + 3, "39 of 40 tokens are computed once"
    reused = [row for e in collector.events for row in e.reused]
    assert {row.request_id for row in reused} == {"s/1", "s/2", "s/3"}
    assert {row.writer_request_id for row in reused} == {"s/0"}
    assert len(reused) == 3 * 39
    assert len({c.tokens for c in engine.completions.values()}) == 4


def test_a_stop_token_ends_a_request_and_is_its_last_token() -> None:
    free, _ = run([Request("a", prompt(6), 12)])
    tokens = free.completions["a"].tokens
    stopped, _ = run([Request("a", prompt(6), 12, stop_token_ids=(tokens[5],))])
    done = stopped.completions["a"]
    assert done.finish_reason is FinishReason.STOP
    assert done.tokens == tokens[: tokens.index(tokens[5]) + 1]


def test_a_stop_string_cuts_the_text_and_frees_the_slot() -> None:
    letters = SamplingParams(logit_bias=tuple((ord(c), 60.0) for c in "abcdefgh"))
    free, _ = run([Request("a", prompt(6), 12, letters)])
    text = free.completions["a"].text
    needle = text[4:6]
    stopped, collector = run([Request("a", prompt(6), 12, letters, stop_strings=(needle,))])
    done = stopped.completions["a"]
    assert done.finish_reason is FinishReason.STOP
    assert done.text == text[: text.index(needle)]
    assert len(steps_of(collector, "a")) == len(done.tokens) == text.index(needle) + len(needle)


def test_ids_are_unique_and_prompts_are_checked() -> None:
    with Engine(model(), EngineSettings(policy="gemv")) as engine:
        engine.submit(Request("a", prompt(4), 2))
        for wrong, message in (
            (Request("a", prompt(4), 2), "is taken"),
            (Request("b", (), 2), "at least one prompt token"),
            (Request("b", prompt(4), 0), "max_tokens of 1 or more"),
            (Request("b", (1, 256), 2), "token 256, outside the vocabulary of 256"),
        ):
            with pytest.raises(SettingsError, match=message):
                engine.submit(wrong)
        engine.run()
    assert set(engine.completions) == {"a"}


def damage(engine: Engine) -> None:
    """Give a block an owner too many, as a fault of the engine would."""
    engine.store._tables.allocator._owners[0] += 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(("every", "noticed_in_step"), [(1, 3), (4, 4), (0, None)])
def test_an_audit_stops_a_run_whose_blocks_do_not_add_up(every: int, noticed_in_step: int | None) -> None:
    with Engine(model(), EngineSettings(policy="gemv", audit_every=every)) as engine:
        engine.submit(Request("a", prompt(6), 8))
        for _ in range(3):
            engine.step()
        damage(engine)
        if noticed_in_step is None:
            engine.run()
            return
        with pytest.raises(EngineError, match=f"not sound after step {noticed_in_step}: .*fault of the engine"):
            engine.run()
