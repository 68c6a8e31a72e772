"""The engine: one thread that submits, plans, forwards, decides and commits, step by step.

Owns the order of things within a step. Must not know traces. Everything that could change a bit of the result
(batch, path, token) is told to the observers; nothing that observers do can reach back.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from engine.arrivals import Arrivals
from engine.batch import Batch
from engine.decide import Decision, ForcedTokens, decide
from engine.endings import LIFECYCLE_KINDS, ending_of_run
from engine.errors import EngineError, SettingsError
from engine.kernels.policy import SiteOverride
from engine.known import KnownStep
from engine.kv.build import build_store
from engine.model.load import LoadedModel
from engine.model.packed import ForwardResult, PackedModel
from engine.model.selfcheck import ensure_checked
from engine.observer import (
    LayerRows,
    LifecycleEvent,
    MemoryRead,
    Observer,
    QueueState,
    StepEvent,
    StepTimings,
)
from engine.request import Completion, FinishReason, Request
from engine.request_checks import check_request
from engine.run_info import describe_run
from engine.sampling.stops import StopWatch, stop_rules
from engine.scheduling.continuous import ContinuousScheduler
from engine.scheduling.pinned import PinnedScheduler, PinnedStep
from engine.scheduling.plan import Scheduler, StepPlan
from engine.settings import EngineSettings
from engine.speculation import Speculator, build_speculator
from engine.state import RequestState


class Engine:
    """Serves requests on one model. Use as a context manager: the model is instrumented until `close`.

    `pinned` plays an earlier run's schedule back instead of planning (then no drafter runs, proposals are pinned too).
    `forced` pins output tokens, `overrides` pin kernel paths at single (step, site). `known` gives the K/V rows of
    pinned steps that are then not computed; observers hear nothing of these.

    `states` holds the requests that have not ended; of those that have, `completions` is all that is kept.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        settings: EngineSettings,
        observers: Sequence[Observer] = (),
        overrides: tuple[SiteOverride, ...] = (),
        forced: ForcedTokens | None = None,
        pinned: Sequence[PinnedStep] | None = None,
        known: Mapping[int, KnownStep] | None = None,
    ) -> None:
        if known and pinned is None:
            raise SettingsError("steps are known only of a schedule that is pinned; give both or neither.")
        self.loaded = loaded
        self.known = known or {}
        self.settings = settings
        self.observers = tuple(observers)
        self.forced = forced or ForcedTokens()
        self._blas_limits = threadpool_limits(limits=settings.blas_threads, user_api="blas")
        self.packed = PackedModel(loaded.model, settings.kernel_policy(overrides))
        self.store = build_store(settings)
        self.arrivals = Arrivals()
        self.states: dict[str, RequestState] = {}
        self.completions: dict[str, Completion] = {}
        self.step_number = 0
        self._submitted = 0
        self._lifecycle: list[LifecycleEvent] = []
        self._ended: list[Completion] = []
        self._started_s = time.monotonic()
        self._wants_kv = any(observer.needs.kv_rows for observer in self.observers)
        self.scheduler: Scheduler
        self.speculator = Speculator(settings.speculation, None)
        if pinned is not None:
            self.scheduler = PinnedScheduler(pinned, self.store, settings.speculation.bonus)
        else:
            self.scheduler = ContinuousScheduler(settings, self.store)
        try:
            ensure_checked(self.packed, loaded.dtype, loaded.vocabulary_size)
            self.packed.keep_outputs({site for observer in self.observers for site in observer.needs.tensor_sites})
            if pinned is None:
                self.speculator = build_speculator(settings.speculation, loaded, self.packed.policy, self._wants_kv)
            info = describe_run(loaded, settings, overrides)
            for observer in self.observers:
                observer.run_started(info)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *rest: object) -> None:
        ending = ending_of_run(error)
        try:
            if not ending.failure:
                self._tell_ended()
            for observer in self.observers:
                observer.run_finished(ending)
        finally:
            self.close()

    def close(self) -> None:
        """Give the models back as they were."""
        self.speculator.close()
        self.packed.close()
        self._blas_limits.restore_original_limits()

    def submit(self, request: Request) -> None:
        """Hand in a request; it enters the waiting queue when its arrival rule holds.

        Raises:
            SettingsError: the id is taken, or a field is out of its range; names the field and its value.
        """
        if request.id in self.states or request.id in self.completions:
            raise SettingsError(f"request id {request.id!r} is taken; ids are unique within a run.")
        check_request(request, self.loaded.vocabulary_size)
        rules = stop_rules(request, self.loaded.tokenizer.eos_token_ids)
        watch = StopWatch(rules, self.loaded.tokenizer.token_bytes)
        state = RequestState(request, order=self._submitted, stop_watch=watch)
        self._submitted += 1
        self.states[request.id] = state
        self.arrivals.add(state)

    def cancel(self, request_id: str) -> None:
        """End a request now, wherever it stands; its K/V is freed before the next step.

        Raises:
            EngineError: no such request.
        """
        if request_id in self.completions:
            return
        state = self.states.get(request_id)
        if state is None:
            raise EngineError(f"there is no request {request_id!r} to cancel.")
        if self.arrivals.take(request_id) is not None:
            self._tell_submitted(state)
        self._end(state, FinishReason.CANCELLED, "cancelled by the caller")

    def run(self) -> dict[str, Completion]:
        """Step until every request has ended; returns completions by request id."""
        while self.step():
            pass
        return self.completions

    def step(self) -> bool:
        """Run one step. False when every request has ended.

        Raises:
            EngineError: a request can never be scheduled, or K/V memory is not sound.
        """
        started = time.perf_counter()
        plan = self._plan()
        if plan is None:
            return False
        planned = time.perf_counter()
        self.speculator.propose(plan, self.step_number)
        self.scheduler.fill_up(plan, self.step_number)
        self.scheduler.make_room_for_proposals(plan)
        batch = plan.to_batch(self.step_number, self.settings.speculation.bonus)
        memory = self._memory_of(batch)
        drafted = time.perf_counter()
        result = self._forward(batch)
        forwarded = time.perf_counter()
        decisions = self._decide(batch, plan, result)
        queue = self._queue_state()
        self._commit(batch, decisions)
        self._audit()
        plan.lifecycle.extend(self._lifecycle)
        self._lifecycle = []
        timings = StepTimings(
            planned - started, drafted - planned, forwarded - drafted, time.perf_counter() - forwarded
        )
        self._tell(batch, plan, result, decisions, queue, timings, memory)
        self._tell_ended()
        self.step_number += 1
        return True

    # --- phases of a step -----------------------------------------------------------------------------------------

    def _plan(self) -> StepPlan | None:
        self._take_arrivals(self.arrivals.due(self.step_number, self._committed_tokens))
        self._end_cancelled_and_late()
        while True:
            self._tell_ended()
            plan = self.scheduler.plan(self.step_number)
            if plan is not None and plan.scheduled:
                plan.lifecycle[:0] = self._lifecycle
                self._lifecycle = []
                return plan
            if self.scheduler.running or self.scheduler.waiting:
                stuck = (self.scheduler.running or self.scheduler.waiting)[0]
                raise EngineError(f"request {stuck.id!r} cannot be scheduled in step {self.step_number}.")
            if not self.arrivals:
                return None
            due = self.arrivals.earliest(self.step_number, self._committed_tokens)
            self._take_arrivals(due)
            if not due:
                self._refuse_arrivals_that_cannot_come()

    def _committed_tokens(self, request_id: str) -> int:
        """Output tokens of a request so far, ended or not; 0 for one that was never submitted."""
        if request_id in self.completions:
            return len(self.completions[request_id].tokens)
        state = self.states.get(request_id)
        return 0 if state is None else len(state.output)

    def _refuse_arrivals_that_cannot_come(self) -> None:
        for state in self.arrivals.take_all():
            arrival = state.request.arrival
            self._tell_submitted(state)
            awaited = f"{arrival.after_tokens} tokens of {arrival.after_request!r}"
            self._end(state, FinishReason.REFUSED, f"it waits for {awaited}, which will never commit them")

    def _take_arrivals(self, states: Sequence[RequestState]) -> None:
        for state in states:
            state.queued_s = time.monotonic() - self._started_s
            self._tell_submitted(state)
            reason = self.scheduler.submit(state)
            if reason is not None:
                self._end(state, FinishReason.REFUSED, reason)

    def _end_cancelled_and_late(self) -> None:
        now = time.monotonic() - self._started_s
        for state in [*self.scheduler.running, *self.scheduler.waiting]:
            request = state.request
            if request.cancel_at_step is not None and self.step_number >= request.cancel_at_step:
                self._end(state, FinishReason.CANCELLED, f"cancelled at step {self.step_number}")
            elif request.timeout_s is not None and now - state.queued_s > request.timeout_s:
                self._end(state, FinishReason.TIMEOUT, f"exceeded its {request.timeout_s} s")

    def _forward(self, batch: Batch) -> ForwardResult:
        known = self.known.get(batch.step)
        if known is not None:
            return known.store(batch, self.store, self.loaded.vocabulary_size)
        return self.packed.forward(batch, self.store, capture_kv=self._wants_kv)

    def _decide(self, batch: Batch, plan: StepPlan, result: ForwardResult) -> list[Decision]:
        decisions = []
        head_row = 0
        for segment, item in zip(batch.segments, plan.scheduled, strict=True):
            if not segment.wanted_logits:
                continue
            logits = result.logits[head_row : head_row + segment.wanted_logits]
            decisions.append(
                decide(batch, item.state, logits, head_row, item.proposal, self.speculator.name, self.forced)
            )
            head_row += segment.wanted_logits
        return decisions

    def _commit(self, batch: Batch, decisions: Sequence[Decision]) -> None:
        self.store.commit_step(batch)
        now = time.monotonic() - self._started_s
        for segment in batch.segments:
            state = self.states[segment.request_id]
            state.computed_tokens = segment.end_position
            if state.scheduled_s is None:
                state.scheduled_s = now
        for decision in decisions:
            state = self.states[decision.request_id]
            state.output.extend(decision.tokens)
            if state.first_token_s is None and decision.tokens:
                state.first_token_s = now
            if state.computed_tokens > state.known_tokens - 1:
                state.computed_tokens = state.known_tokens - 1
                self.store.truncate(state.id, state.computed_tokens)
            self.speculator.committed(decision, state)
            if state.stop_hit is not None:
                self._end(state, FinishReason.STOP, f"{state.stop_hit.cause.value} {state.stop_hit.matched}")
            elif state.remaining_output <= 0:
                state.text += state.stop_watch.finish().text
                self._end(state, FinishReason.LENGTH, "")
            elif decision.failure is not None:
                state.text += state.stop_watch.finish().text
                self._end(state, FinishReason.ERROR, decision.failure)

    def _end(self, state: RequestState, reason: FinishReason, detail: str) -> None:
        self.scheduler.remove(state, reusable=reason is not FinishReason.ERROR)
        self.speculator.closed(state.id)
        state.finish_reason, state.detail = reason, detail
        kind = LIFECYCLE_KINDS.get(reason, "finished")
        self._lifecycle.append(LifecycleEvent(kind, state.id, state.computed_tokens, detail or reason.value))
        completion = Completion(
            request_id=state.id,
            tokens=tuple(state.output),
            finish_reason=reason,
            queued_s=state.queued_s,
            scheduled_s=state.scheduled_s,
            first_token_s=state.first_token_s,
            finished_s=time.monotonic() - self._started_s,
            detail=detail,
            text=state.text,
        )
        self.completions[state.id] = completion
        del self.states[state.id]
        self._ended.append(completion)

    def _audit(self) -> None:
        every = self.settings.audit_every
        if every and self.step_number % every == 0:
            try:
                self.store.check_integrity()
            except AssertionError as error:
                raise EngineError(
                    f"K/V memory is not sound after step {self.step_number}: {error}; this is a fault of the engine, "
                    "nothing computed after it can be trusted."
                ) from error

    def _memory_of(self, batch: Batch) -> tuple[MemoryRead, ...]:
        """What each segment found in memory, in steps that an observer asks for. It reads what is computed already."""
        wanted = {observer.needs.memory_every for observer in self.observers}
        if not any(every and batch.step % every == 0 for every in wanted):
            return ()
        reads = []
        for segment in batch.segments:
            layers = range(self.packed.layers if segment.first_position else 0)
            rows = [LayerRows(*self.store.audit_read(layer, segment.request_id)[:2]) for layer in layers]
            reads.append(MemoryRead(segment.request_id, rows))
        return tuple(reads)

    # --- telling --------------------------------------------------------------------------------------------------

    def _queue_state(self) -> QueueState:
        store = self.store.state()
        return QueueState(
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            blocks_used=store.blocks_used,
            blocks_cached=store.blocks_cached,
            blocks_total=store.blocks_total,
        )

    def _tell(
        self,
        batch: Batch,
        plan: StepPlan,
        result: ForwardResult,
        decisions: Sequence[Decision],
        queue: QueueState,
        timings: StepTimings,
        memory: tuple[MemoryRead, ...],
    ) -> None:
        if not self.observers or batch.step in self.known:
            return
        event = StepEvent(
            batch=batch,
            plan=result.plan,
            logits=result.logits,
            processed_logits=_processed_rows(result, decisions),
            sampled=tuple(row for decision in decisions for row in decision.sampled),
            kv_rows=result.kv_rows,
            queue=queue,
            timings=timings,
            drafts=tuple(decision.draft for decision in decisions if decision.draft is not None),
            lifecycle=tuple(plan.lifecycle),
            reused=tuple(plan.reused),
            draft_forwards=self.speculator.forwards,
            tensors=result.tensors,
            memory=memory,
        )
        for observer in self.observers:
            observer.step_finished(event)

    def _tell_submitted(self, state: RequestState) -> None:
        for observer in self.observers:
            observer.request_submitted(state.request, self.step_number)

    def _tell_ended(self) -> None:
        ended, self._ended = self._ended, []
        for completion in ended:
            for observer in self.observers:
                observer.request_finished(completion, self.step_number)


def _processed_rows(result: ForwardResult, decisions: Sequence[Decision]) -> npt.NDArray[np.float32]:
    """All processed rows in head-row order; the raw array itself where nothing was changed."""
    if all(np.shares_memory(decision.processed, result.logits) for decision in decisions):
        return result.logits
    return np.concatenate([decision.processed for decision in decisions])
