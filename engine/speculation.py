"""Speculation within a step: asks the drafter for proposals, and tells it what became of them.

Owns the drafter and each request's proposal length. Must not know batches, logits or K/V of the target.
"""

from __future__ import annotations

from engine.decide import Decision
from engine.errors import SettingsError
from engine.kernels.policy import KernelPolicy
from engine.model.load import LoadedModel, load_model
from engine.observer import DraftForward
from engine.scheduling.plan import ScheduledRows, StepPlan
from engine.settings import DrafterKind, SpeculationSettings
from engine.speculative.draft_models import second_model_drafter, self_drafter
from engine.speculative.drafter import Drafter, DraftRequest
from engine.speculative.length import ProposalLength, first_length
from engine.speculative.prompt_lookup import PromptLookupDrafter
from engine.speculative.statistics import SpeculationStatistics
from engine.state import RequestState


class Speculator:
    """One run's speculation; `drafter` None means that nothing is ever proposed."""

    def __init__(self, settings: SpeculationSettings, drafter: Drafter | None) -> None:
        self.settings = settings
        self.drafter = drafter
        self.statistics: dict[str, SpeculationStatistics] = {}
        self._lengths: dict[str, ProposalLength] = {}

    @property
    def name(self) -> str:
        """The drafter's name, `none` without one."""
        return self.drafter.name if self.drafter is not None else DrafterKind.NONE.value

    @property
    def forwards(self) -> tuple[DraftForward, ...]:
        """The draft model's forwards of this step."""
        return self.drafter.forwards if self.drafter is not None else ()

    def propose(self, plan: StepPlan, step: int) -> None:
        """Fill in the proposals of every scheduled decode that has room for one."""
        if self.drafter is None:
            return
        decoding = [item for item in plan.scheduled if item.max_proposal > 0]
        wanted = []
        for item in decoding:
            length = self._lengths.setdefault(item.state.id, first_length(self.settings.proposal, self.settings.tokens))
            item.max_proposal = min(item.max_proposal, length.length(len(decoding)))
            if item.max_proposal > 0:
                wanted.append(item)
        requests = [_draft_request(item) for item in wanted]
        for item, proposal in zip(wanted, self.drafter.propose(requests, step), strict=True):
            # A drafter that proposes too much would overrun the budget.
            item.proposal = proposal.first(item.max_proposal)

    def committed(self, decision: Decision, state: RequestState) -> None:
        """Learn from a decision of `state`, whose output already holds the committed tokens."""
        if self.drafter is None:
            return
        if decision.draft is not None:
            proposed, accepted = len(decision.draft.proposed), decision.draft.accepted_tokens
            self.statistics.setdefault(state.id, SpeculationStatistics()).record(proposed, accepted)
            if state.id in self._lengths:
                self._lengths[state.id] = self._lengths[state.id].after(proposed, accepted)
        self.drafter.committed(state.id, decision.tokens)
        draft = decision.draft
        if draft is not None and draft.accepted_tokens < len(draft.proposed):
            self.drafter.rolled_back(state.id, draft.first_position + draft.accepted_tokens)

    def closed(self, request_id: str) -> None:
        """A request has ended."""
        if self.drafter is not None:
            self.drafter.closed(request_id)
            self._lengths.pop(request_id, None)

    def close(self) -> None:
        """Give a draft model back as it was."""
        closer = getattr(self.drafter, "close", None)
        if closer is not None:
            closer()


def _draft_request(item: ScheduledRows) -> DraftRequest:
    state = item.state
    return DraftRequest(
        state.id, state.tokens, item.max_proposal, state.request.sampling, prompt_length=len(state.request.prompt)
    )


def build_speculator(
    settings: SpeculationSettings, loaded: LoadedModel, policy: KernelPolicy, capture_kv: bool
) -> Speculator:
    """The speculator that the settings ask for. A draft model runs under the target's kernel `policy`.

    Raises:
        SettingsError: the drafter needs something that is missing, or the vocabularies differ.
    """
    match settings.drafter:
        case DrafterKind.NONE:
            return Speculator(settings, None)
        case DrafterKind.PROMPT_LOOKUP:
            return Speculator(settings, PromptLookupDrafter())
        case DrafterKind.SELF:
            own = self_drafter(
                loaded, settings.self_layers, policy, acceptance=settings.acceptance, capture_kv=capture_kv
            )
            return Speculator(settings, own)
        case DrafterKind.MODEL:
            if settings.draft_model is None:
                raise SettingsError("speculation.drafter is 'model', so speculation.draft_model must name one.")
            second = second_model_drafter(
                loaded,
                load_model(settings.draft_model, loaded.dtype),
                policy,
                acceptance=settings.acceptance,
                capture_kv=capture_kv,
            )
            return Speculator(settings, second)
