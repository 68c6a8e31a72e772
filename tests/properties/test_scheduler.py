"""The scheduler on a real paged store: limits hold in every step, everybody finishes, no block is lost."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.batch import Batch, SegmentKind
from engine.request import Request
from engine.settings import (
    AdmissionPolicy,
    BudgetUnit,
    DrafterKind,
    EngineSettings,
    SchedulingPolicy,
    SpeculationSettings,
)
from engine.state import RequestState
from tests.engine.scheduling.simulation import Simulation

LONGEST_PROMPT, LONGEST_OUTPUT = 40, 12
many = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def request_lists(draw: st.DrawFn) -> list[Request]:
    """Requests of which some share a prompt, so that the prefix cache matters."""
    stem = tuple(draw(st.lists(st.integers(0, 3), min_size=1, max_size=24)))
    requests = []
    for index in range(draw(st.integers(1, 8))):
        own = tuple(draw(st.lists(st.integers(0, 3), min_size=1, max_size=LONGEST_PROMPT - len(stem))))
        prompt = stem + own if draw(st.booleans()) else own
        output = draw(st.integers(1, LONGEST_OUTPUT))
        requests.append(Request(f"r{index}", prompt, output, priority=draw(st.integers(0, 2))))
    return requests


@st.composite
def configurations(draw: st.DrawFn) -> EngineSettings:
    """Every knob of the scheduler; the pool always holds the longest request, often not two of them."""
    block_size = draw(st.sampled_from([1, 4, 16]))
    fewest = -(-(LONGEST_PROMPT + LONGEST_OUTPUT) // block_size)
    chunked = draw(st.booleans())
    values: dict[str, Any] = {
        "max_active": draw(st.integers(1, 5)),
        "token_budget": draw(st.integers(1, 48) if chunked else st.integers(LONGEST_PROMPT, 64)),
        "budget_unit": draw(st.sampled_from(list(BudgetUnit))),
        "chunked_prefill": chunked,
        "long_prefill_threshold": draw(st.sampled_from([0, 0, 3])),
        "scheduling": draw(st.sampled_from(list(SchedulingPolicy))),
        "admission": draw(st.sampled_from(list(AdmissionPolicy))),
        "kv_blocks": draw(st.integers(fewest, 2 * fewest)),
        "block_size": block_size,
        "prefix_cache": draw(st.booleans()),
        "align_prefill_to_blocks": draw(st.booleans()),
    }
    if draw(st.booleans()):
        values["speculation"] = {
            "drafter": "prompt-lookup",
            "tokens": draw(st.integers(1, 5)),
            "bonus": draw(st.booleans()),
        }
    return EngineSettings(**values)


def alternating(state: RequestState, proposed: int) -> int:
    """A verification that accepts sometimes all, sometimes some, sometimes none."""
    return (3 * len(state.output) + state.order) % (proposed + 1)


def sometimes(state: RequestState, most: int) -> int:
    """A drafter that often has less to propose than it may, and often nothing."""
    return (5 * len(state.output) + 2 * state.order) % (most + 1)


def cost(batch: Batch, unit: BudgetUnit) -> int:
    """What a step takes from the token budget."""
    if unit is BudgetUnit.ROWS:
        return batch.packed_rows
    return sum(
        1 if segment.kind in (SegmentKind.DECODE, SegmentKind.VERIFY) else segment.rows for segment in batch.segments
    )


@many
@given(requests=request_lists(), configuration=configurations())
def test_limits_hold_in_every_step_and_everybody_finishes(
    requests: list[Request], configuration: EngineSettings
) -> None:
    simulation = Simulation(configuration, alternating, sometimes)
    for request in requests:
        simulation.submit(request)
    while (batch := simulation.step()) is not None:
        assert 1 <= cost(batch, configuration.budget_unit) <= configuration.token_budget
        assert len(simulation.scheduler.running) <= configuration.max_active
        assert len(batch.segments) <= configuration.max_active
        assert len({segment.request_id for segment in batch.segments}) == len(batch.segments)
        assert len(simulation.batches) < 3000, "no progress"
    assert simulation.finished == [request.id for request in requests]
    assert all(len(state.output) == state.request.max_tokens for state in simulation.states.values())
    assert simulation.leaked_blocks == 0
    if configuration.admission is not AdmissionPolicy.OPTIMISTIC:
        assert simulation.events("preempted") == []


@many
@given(requests=request_lists(), configuration=configurations(), budget=st.integers(1, 12), tokens=st.integers(1, 5))
def test_no_row_is_left_unused_while_somebody_could_use_it(
    requests: list[Request], configuration: EngineSettings, budget: int, tokens: int
) -> None:
    """What a drafter leaves goes to prefills and admissions: memory is never short under reservation."""
    changes: dict[str, Any] = {
        "admission": AdmissionPolicy.RESERVE,
        "long_prefill_threshold": 0,
        "align_prefill_to_blocks": False,
        "chunked_prefill": True,
        "token_budget": budget,
        "kv_blocks": 1000,
        "speculation": SpeculationSettings(drafter=DrafterKind.PROMPT_LOOKUP, tokens=tokens),
    }
    simulation = Simulation(configuration.model_copy(update=changes), alternating, sometimes)
    for request in requests:
        simulation.submit(request)
    while True:
        before = [state for state in simulation.scheduler.running if not state.is_decoding]
        wanted = {state.id: state.uncomputed_tokens for state in before}
        if (batch := simulation.step()) is None:
            break
        if cost(batch, configuration.budget_unit) < budget:
            given = {segment.request_id: segment.rows for segment in batch.segments}
            assert {name: given.get(name) for name in wanted} == wanted


@many
@given(requests=request_lists(), configuration=configurations(), budget=st.integers(1, 12))
def test_every_decode_is_served_in_every_step(
    requests: list[Request], configuration: EngineSettings, budget: int
) -> None:
    """There are never more decodes than the budget has rows: to become one takes a row that decodes had left over."""
    simulation = Simulation(
        configuration.model_copy(update={"token_budget": budget, "chunked_prefill": True}), alternating, sometimes
    )
    for request in requests:
        simulation.submit(request)
    while True:
        decoding = {state.id for state in simulation.scheduler.running if state.is_decoding}
        if (batch := simulation.step()) is None:
            break
        preempted = {event.request_id for event in simulation.plans[-1].lifecycle if event.kind == "preempted"}
        assert decoding - preempted <= {segment.request_id for segment in batch.segments}


@many
@given(requests=request_lists(), configuration=configurations())
def test_every_position_is_computed_in_order_and_every_output_decided_once(
    requests: list[Request], configuration: EngineSettings
) -> None:
    simulation = Simulation(configuration, alternating, sometimes)
    simulation.run(requests)
    for request in requests:
        expected = 0
        for plan, batch in zip(simulation.plans, simulation.batches, strict=True):
            preempted = any(e.kind == "preempted" and e.request_id == request.id for e in plan.lifecycle)
            expected = 0 if preempted else expected
            for segment in batch.segments:
                if segment.request_id == request.id:
                    start = segment.cached_tokens if expected == 0 else segment.first_position
                    assert segment.first_position == start <= max(expected, segment.cached_tokens)
                    expected = segment.end_position


@many
@given(requests=request_lists(), configuration=configurations())
def test_first_come_first_served_never_starves_anybody(requests: list[Request], configuration: EngineSettings) -> None:
    in_order = configuration.model_copy(update={"scheduling": SchedulingPolicy.FCFS, "prefix_cache": False})
    simulation = Simulation(in_order, alternating, sometimes)
    simulation.run(requests)
    first_steps = [simulation.steps_of(request.id)[0] for request in requests]
    assert first_steps == sorted(first_steps), "somebody was served before an earlier request"
    for index, request in enumerate(requests):
        # Whoever came earlier needs at most so many steps to be gone; what comes later must not add to it.
        work = sum(len(r.prompt) + r.max_tokens for r in requests[:index])
        recomputes = sum(s.preemptions * (LONGEST_PROMPT + LONGEST_OUTPUT) for s in simulation.states.values())
        assert simulation.steps_of(request.id)[0] <= work + recomputes


@many
@given(requests=request_lists(), configuration=configurations(), data=st.data())
def test_removing_anybody_at_any_time_leaks_nothing(
    requests: list[Request], configuration: EngineSettings, data: st.DataObject
) -> None:
    simulation = Simulation(configuration, alternating, sometimes)
    for request in requests:
        simulation.submit(request)
    cancelled = {
        r.id: data.draw(st.integers(0, 12), label=f"cancel {r.id} before step") for r in requests if len(r.prompt) % 2
    }
    while True:
        for name, step in cancelled.items():
            state = simulation.states[name]
            if step == len(simulation.batches) and state.finish_reason is None:
                simulation.scheduler.remove(state)
                simulation.store.check_integrity()
        if simulation.step() is None:
            break
        assert len(simulation.batches) < 3000
    assert simulation.leaked_blocks == 0
    assert set(simulation.finished) >= {request.id for request in requests if request.id not in cancelled}
