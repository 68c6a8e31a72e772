"""Who may start: limits on requests and K/V memory. Must not know batches or kernels."""

from __future__ import annotations

from collections.abc import Sequence

from engine.settings import AdmissionPolicy, EngineSettings
from engine.state import RequestState


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold `tokens` K/V rows."""
    return -(-tokens // block_size)


def reason_it_can_never_run(state: RequestState, settings: EngineSettings) -> str | None:
    """A sentence with the numbers when a request can never fit, None when it can."""
    request = state.request
    wanted = len(request.prompt) + request.max_tokens
    if wanted > settings.max_model_length:
        return (
            f"request {request.id!r} needs {len(request.prompt)} prompt + {request.max_tokens} output "
            f"= {wanted} tokens, "
            f"more than max_model_length {settings.max_model_length}"
        )
    if not settings.chunked_prefill and len(request.prompt) > settings.token_budget:
        return (
            f"request {request.id!r} has {len(request.prompt)} prompt tokens, more than token_budget "
            f"{settings.token_budget}, and chunked prefill is off"
        )
    if settings.kv == "paged":
        needed = blocks_for(state.worst_case_tokens, settings.block_size)
        if needed > settings.resolved_kv_blocks:
            return (
                f"request {request.id!r} needs up to {needed} KV blocks of {settings.block_size} tokens, "
                f"the pool has {settings.resolved_kv_blocks}"
            )
    return None


def may_start(
    state: RequestState, running: Sequence[RequestState], group_is_open: bool, settings: EngineSettings
) -> bool:
    """True when the admission policy lets `state` join `running`.

    `group_is_open`: under static batching, the present group is still being formed.
    """
    if len(running) >= settings.max_active:
        return False
    if settings.admission is AdmissionPolicy.STATIC and not group_is_open:
        return False
    if settings.admission is AdmissionPolicy.OPTIMISTIC or settings.kv != "paged":
        return True
    promised = sum(blocks_for(s.worst_case_tokens, settings.block_size) for s in running)
    needed = blocks_for(state.worst_case_tokens, settings.block_size)
    return promised + needed <= settings.resolved_kv_blocks
