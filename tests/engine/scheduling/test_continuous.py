"""Continuous scheduling, one rule at a time: budgets, chunks, admission, preemption, policies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.batch import SegmentKind
from engine.request import Request
from engine.settings import AdmissionPolicy, EngineSettings, SchedulingPolicy
from engine.state import RequestState
from tests.engine.scheduling.simulation import DraftedTokens, Simulation, accept_none, draft_all


def accept_all_tokens(state: RequestState, proposed: int) -> int:
    """Every proposal is right."""
    return proposed


def request(name: str, prompt_tokens: int, output_tokens: int, first_token: int = 0, priority: int = 0) -> Request:
    prompt = tuple((first_token + index) % 256 for index in range(prompt_tokens))
    return Request(name, prompt, output_tokens, priority=priority)


def draft_nothing(state: RequestState, most: int) -> int:
    """The drafter finds nothing to propose."""
    return 0


def simulate(
    requests: list[Request], accept_all: bool = False, drafted: DraftedTokens = draft_all, **settings: Any
) -> Simulation:
    values: dict[str, Any] = {"block_size": 4, "kv_blocks": 64, "max_active": 4, "token_budget": 64} | settings
    simulation = Simulation(EngineSettings(**values), accept_all_tokens if accept_all else accept_none, drafted)
    simulation.run(requests)
    return simulation


def test_decodes_come_before_prefills_and_both_share_a_step() -> None:
    simulation = simulate([request("a", 5, 6), request("b", 40, 2)], token_budget=16)
    kinds = [[segment.kind for segment in batch.segments] for batch in simulation.batches]
    assert kinds[0] == [SegmentKind.PREFILL, SegmentKind.PREFILL]
    assert kinds[1] == [SegmentKind.DECODE, SegmentKind.PREFILL]
    assert [batch.packed_rows for batch in simulation.batches[:3]] == [16, 16, 15]


def test_a_long_prompt_is_split_where_the_budget_ends() -> None:
    assert simulate([request("a", 40, 2)], token_budget=16).rows_of("a") == [16, 16, 8, 1]


def test_without_chunked_prefill_a_prompt_is_never_split() -> None:
    prompts = [request("a", 10, 9), request("b", 14, 3), request("c", 16, 3)]
    simulation = simulate(prompts, token_budget=16, chunked_prefill=False)
    assert [simulation.rows_of(name)[0] for name in "abc"] == [10, 14, 16]


def test_without_chunked_prefill_a_recompute_larger_than_the_budget_is_split() -> None:
    prompts = [request("a", 14, 14), request("b", 14, 14)]
    simulation = simulate(
        prompts, token_budget=16, chunked_prefill=False, kv_blocks=12, admission=AdmissionPolicy.OPTIMISTIC
    )
    assert {name for _, name in simulation.events("preempted")} == {"b"}
    assert simulation.finished == ["a", "b"]
    recomputed = [s.rows for b in simulation.batches for s in b.segments if s.kind is SegmentKind.RECOMPUTE]
    assert sum(recomputed) > 16 >= max(recomputed)


def test_the_long_prefill_threshold_caps_one_request_and_leaves_budget_to_others() -> None:
    simulation = simulate([request("a", 20, 2), request("b", 6, 2, 100)], long_prefill_threshold=8)
    assert simulation.rows_of("a") == [8, 8, 4, 1]
    assert simulation.rows_of("b") == [6, 1]


def test_aligned_prefill_has_the_same_last_row_count_cold_and_warm() -> None:
    simulation = Simulation(
        EngineSettings(block_size=4, kv_blocks=64, max_active=1, prefix_cache=True, align_prefill_to_blocks=True)
    )
    simulation.run([request("cold", 14, 1), request("warm", 14, 1)])
    assert simulation.rows_of("cold") == [12, 2]
    assert simulation.rows_of("warm") == [2]


def test_without_alignment_a_warm_prompt_has_another_row_count() -> None:
    simulation = simulate([request("cold", 14, 1), request("warm", 14, 1)], max_active=1, prefix_cache=True)
    assert (simulation.rows_of("cold"), simulation.rows_of("warm")) == ([14], [2])


def test_a_prompt_waits_for_the_block_that_another_is_computing() -> None:
    simulation = simulate([request("a", 13, 3), request("b", 13, 3)], prefix_cache=True)
    assert simulation.steps_of("a", SegmentKind.PREFILL) == [0]
    assert simulation.steps_of("b", SegmentKind.PREFILL) == [1]
    assert simulation.rows_of("b")[0] == 1, "twelve of thirteen tokens are shared"


def test_a_prompt_that_shares_nothing_overtakes_one_that_waits_for_a_block() -> None:
    simulation = simulate([request("a", 13, 3), request("b", 13, 3), request("c", 13, 3, 100)], prefix_cache=True)
    assert simulation.steps_of("c")[0] == 0


def test_reservation_admits_no_more_than_can_ever_fit() -> None:
    simulation = simulate([request("a", 8, 9), request("b", 8, 9, 50), request("c", 8, 9, 90)], kv_blocks=8)
    assert [simulation.steps_of(name)[0] for name in "abc"] == [0, 0, 9]
    assert simulation.events("preempted") == []


@pytest.mark.parametrize("bonus", [True, False])
def test_reservation_does_not_preempt_when_a_request_fills_the_pool_to_the_last_row(bonus: bool) -> None:
    speculation = {"drafter": "prompt-lookup", "tokens": 4, "bonus": bonus}
    simulation = simulate([request("a", 9, 8)], kv_blocks=4, speculation=speculation)
    assert simulation.events("preempted") == []
    assert simulation.finished == ["a"]


def test_optimistic_admission_preempts_the_youngest_and_recomputes_it() -> None:
    simulation = simulate(
        [request("a", 8, 9), request("b", 8, 9, 50), request("c", 8, 9, 90)],
        kv_blocks=8,
        admission=AdmissionPolicy.OPTIMISTIC,
    )
    preempted = [name for _, name in simulation.events("preempted")]
    assert preempted[0] == "c"
    assert "a" not in preempted
    assert simulation.finished == ["a", "b", "c"]
    assert simulation.steps_of("c", SegmentKind.RECOMPUTE)


def test_with_priorities_the_lowest_is_preempted_however_old() -> None:
    simulation = simulate(
        [request("old", 8, 9, priority=0), request("young", 8, 9, 50, priority=5)],
        kv_blocks=5,
        admission=AdmissionPolicy.OPTIMISTIC,
        scheduling=SchedulingPolicy.PRIORITY,
    )
    assert {name for _, name in simulation.events("preempted")} == {"old"}
    assert simulation.finished == ["old", "young"]


def test_nobody_is_admitted_in_a_step_that_preempts() -> None:
    policies = {"admission": AdmissionPolicy.OPTIMISTIC, "scheduling": SchedulingPolicy.SHORTEST_PREFILL}
    simulation = Simulation(EngineSettings(block_size=4, kv_blocks=8, max_active=2, **policies))
    for early in (request("a", 8, 9), request("b", 20, 9, 50)):
        simulation.submit(early)
    simulation.step()
    simulation.run([request("small", 1, 2, 90)])
    assert simulation.events("preempted") == [(1, "b")]
    assert simulation.events("admitted") == [(0, "a"), (0, "b"), (2, "small"), (9, "b")]


def test_nobody_is_preempted_for_the_sake_of_a_guess() -> None:
    simulation = simulate(
        [request("a", 5, 8), request("b", 5, 3, 50)],
        kv_blocks=4,
        admission=AdmissionPolicy.OPTIMISTIC,
        speculation={"drafter": "prompt-lookup", "tokens": 4},
    )
    assert simulation.events("preempted") == []
    assert [segment.rows for segment in simulation.batches[1].segments] == [3, 2], "two of four proposals had room"
    assert simulation.finished == ["a", "b"]


def test_static_batching_admits_a_group_only_when_the_last_one_is_done() -> None:
    lengths = {"a": 2, "b": 9, "c": 3, "d": 4, "e": 2}
    simulation = simulate(
        [request(name, 4, length, 30 * index) for index, (name, length) in enumerate(lengths.items())],
        max_active=2,
        admission=AdmissionPolicy.STATIC,
    )
    assert [simulation.steps_of(name)[0] for name in lengths] == [0, 0, 9, 9, 13]


def test_continuous_batching_fills_a_slot_in_the_step_after_it_falls_free() -> None:
    lengths = {"a": 2, "b": 9, "c": 3, "d": 4, "e": 2}
    simulation = simulate(
        [request(name, 4, length, 30 * index) for index, (name, length) in enumerate(lengths.items())], max_active=2
    )
    assert [simulation.steps_of(name)[0] for name in lengths] == [0, 0, 2, 5, 9]


def test_a_speculative_step_costs_its_rows_or_one_unit_of_work() -> None:
    speculation = {"drafter": "prompt-lookup", "tokens": 4}
    requests = [request("a", 4, 20), request("b", 4, 20, 50), request("c", 40, 2, 90)]
    rows, work = (
        simulate(requests, token_budget=16, budget_unit=unit, speculation=speculation) for unit in ("rows", "work")
    )
    assert [segment.rows for segment in rows.batches[1].segments] == [5, 5, 6]
    assert [segment.rows for segment in work.batches[1].segments] == [5, 5, 14]


def test_a_guess_keeps_nobody_from_a_row_of_its_own() -> None:
    speculation = {"drafter": "prompt-lookup", "tokens": 4}
    requests = [request("a", 3, 40), request("b", 12, 4, 100)]
    simulation = simulate(requests, token_budget=5, speculation=speculation)
    prefill_steps = [b.step for b in simulation.batches for s in b.segments if s.request_id == "b" and s.rows]
    assert prefill_steps[:3] == [0, 1, 2]
    assert max(batch.packed_rows for batch in simulation.batches) <= 5


def test_rows_that_were_not_drafted_go_to_a_prefill_in_the_same_step() -> None:
    speculation = {"drafter": "prompt-lookup", "tokens": 4}
    requests = [request("a", 4, 20), request("b", 40, 2, 90)]
    full, empty = (
        simulate(requests, drafted=drafted, token_budget=16, speculation=speculation)
        for drafted in (draft_all, draft_nothing)
    )
    assert [segment.rows for segment in full.batches[1].segments] == [5, 11]
    assert [segment.rows for segment in empty.batches[1].segments] == [1, 15]


def test_rows_that_were_not_drafted_admit_who_waits_in_the_same_step() -> None:
    speculation = {"drafter": "prompt-lookup", "tokens": 7}
    requests = [request("a", 4, 20), request("b", 7, 2, 90), request("c", 5, 2, 120)]
    simulation = Simulation(
        EngineSettings(block_size=4, kv_blocks=64, max_active=4, token_budget=8, speculation=speculation),
        drafted=draft_nothing,
    )
    simulation.submit(requests[0])
    simulation.step()
    for later in requests[1:]:
        simulation.submit(later)
    simulation.step()
    # One row was kept for b, which is more than it was left with before the drafter spoke: seven fit now.
    assert [(s.request_id, s.rows) for s in simulation.batches[1].segments] == [("a", 1), ("b", 7)]
    assert simulation.events("admitted")[:2] == [(0, "a"), (1, "b")]


def test_rows_that_were_not_drafted_admit_nobody_in_a_step_that_preempts() -> None:
    speculation = {"drafter": "prompt-lookup", "tokens": 4}
    simulation = simulate(
        [request(name, 8, 24, 30 * index) for index, name in enumerate("abcd")],
        drafted=draft_nothing,
        admission=AdmissionPolicy.OPTIMISTIC,
        kv_blocks=12,
        token_budget=24,
        speculation=speculation,
    )
    preempting = {step for step, _ in simulation.events("preempted")}
    assert preempting
    assert not preempting & {step for step, _ in simulation.events("admitted")}


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (SchedulingPolicy.FCFS, [5, 1, 1]),
        (SchedulingPolicy.SHORTEST_PREFILL, [5, 1, 1]),
        (SchedulingPolicy.LONGEST_CACHED_PREFIX, [5, 1, 1]),
        (SchedulingPolicy.ROUND_ROBIN, [5, 1, 1]),
        (SchedulingPolicy.PRIORITY, [1, 1, 5]),
    ],
)
def test_the_policy_decides_whose_guesses_come_first_and_rows_keep_their_places(
    policy: SchedulingPolicy, expected: list[int]
) -> None:
    requests = [request("a", 2, 9), request("b", 2, 9, 50), request("c", 2, 9, 90)]
    simulation = Simulation(
        EngineSettings(
            block_size=4,
            kv_blocks=64,
            token_budget=7,
            scheduling=policy,
            speculation={"drafter": "prompt-lookup", "tokens": 4},
        )
    )
    for one in requests:
        simulation.submit(one)
    simulation.step()
    # The last one becomes urgent only now, so that it was admitted last.
    urgent = simulation.states["c"]
    urgent.request = replace(urgent.request, priority=1)
    batch = simulation.step()
    assert batch is not None
    assert [(s.request_id, s.rows) for s in batch.segments] == list(zip("abc", expected, strict=True))


def test_round_robin_serves_whoever_has_waited_longest() -> None:
    requests = [request(name, 16, 1, 50 * index) for index, name in enumerate("abc")]
    settings = {"token_budget": 8, "long_prefill_threshold": 4, "scheduling": SchedulingPolicy.ROUND_ROBIN}
    simulation = Simulation(EngineSettings(block_size=4, kv_blocks=64, max_active=3, **settings))
    simulation.scheduler.settings = simulation.settings.model_copy(update={"token_budget": 12})
    for one in requests:
        simulation.submit(one)
    simulation.step()
    simulation.scheduler.settings = simulation.settings
    while simulation.step() is not None:
        pass
    assert [sorted(s.request_id for s in b.segments) for b in simulation.batches[1:4]] == [
        ["a", "b"],
        ["a", "c"],
        ["b", "c"],
    ]


def test_without_the_bonus_token_k_proposals_take_k_rows() -> None:
    speculation = {"drafter": "prompt-lookup", "tokens": 4, "bonus": False}
    simulation = simulate([request("a", 4, 20)], accept_all=True, speculation=speculation)
    segment = simulation.batches[1].segments[0]
    assert (segment.kind, segment.rows, segment.wanted_logits, segment.proposed_tokens) == (
        SegmentKind.VERIFY,
        4,
        4,
        3,
    )
    assert simulation.finished == ["a"]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (SchedulingPolicy.FCFS, ["long", "short", "urgent"]),
        (SchedulingPolicy.SHORTEST_PREFILL, ["short", "urgent", "long"]),
        (SchedulingPolicy.PRIORITY, ["urgent", "long", "short"]),
    ],
)
def test_the_policy_decides_who_is_admitted_first(policy: SchedulingPolicy, expected: list[str]) -> None:
    requests = [request("long", 20, 2), request("short", 3, 2, 50), request("urgent", 9, 2, 90, priority=1)]
    simulation = simulate(requests, max_active=1, scheduling=policy)
    assert [name for _, name in simulation.events("admitted")] == expected


def test_round_robin_takes_turns_between_unfinished_prefills() -> None:
    requests = [request("a", 32, 1), request("b", 32, 1, 100)]
    settings = {"token_budget": 8, "long_prefill_threshold": 8, "scheduling": SchedulingPolicy.ROUND_ROBIN}
    simulation = Simulation(EngineSettings(block_size=4, kv_blocks=64, max_active=2, **settings))
    simulation.submit(requests[0])
    simulation.scheduler.settings = simulation.settings.model_copy(update={"token_budget": 16})
    simulation.submit(requests[1])
    simulation.step()
    simulation.scheduler.settings = simulation.settings
    while simulation.step() is not None:
        pass
    served = [[s.request_id for s in batch.segments if s.kind is SegmentKind.PREFILL] for batch in simulation.batches]
    assert served[1:5] == [["a"], ["b"], ["a"], ["b"]]


def test_longest_cached_prefix_goes_first() -> None:
    simulation = Simulation(
        EngineSettings(
            block_size=4,
            kv_blocks=64,
            max_active=1,
            prefix_cache=True,
            scheduling=SchedulingPolicy.LONGEST_CACHED_PREFIX,
        )
    )
    simulation.run([request("seed", 13, 1)])
    simulation.run([request("cold", 13, 1, 100), request("warm", 13, 1)])
    assert [name for _, name in simulation.events("admitted")] == ["seed", "warm", "cold"]


def test_round_robin_is_fcfs_among_equals() -> None:
    simulation = simulate(
        [request(n, 4, 2, 40 * i) for i, n in enumerate("abc")], max_active=1, scheduling=SchedulingPolicy.ROUND_ROBIN
    )
    assert [name for _, name in simulation.events("admitted")] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("settings", "numbers"),
    [
        ({"max_model_length": 20}, ("15 prompt + 9 output = 24", "20")),
        ({"chunked_prefill": False, "token_budget": 8}, ("15 prompt tokens", "token_budget 8")),
        ({"kv_blocks": 5}, ("up to 6 KV blocks of 4 tokens", "the pool has 5")),
    ],
)
def test_what_can_never_run_is_refused_with_the_numbers(settings: dict[str, Any], numbers: tuple[str, str]) -> None:
    simulation = simulate([request("big", 15, 9), request("small", 4, 2)], **settings)
    assert all(number in simulation.refused["big"] for number in numbers)
    assert simulation.finished == ["small"]
    assert simulation.leaked_blocks == 0


def test_a_request_that_just_fits_is_not_refused() -> None:
    simulation = simulate([request("big", 15, 9)], kv_blocks=6, max_model_length=24, token_budget=15)
    assert simulation.finished == ["big"]
