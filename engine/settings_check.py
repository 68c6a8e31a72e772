"""Refuses settings that cannot have an effect together: whoever wrote them expects something that will not happen.

For settings that a user wrote; those of a trace are taken as they are. Must not know models.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.errors import SettingsError
from engine.settings import DrafterKind, EngineSettings


def refuse_without_effect(settings: EngineSettings, where: str) -> None:
    """Raise SettingsError naming the first setting that another one leaves without effect, and what to do."""
    for complaint in _complaints(settings):
        raise SettingsError(f"{where}: {complaint}.")


def _complaints(settings: EngineSettings) -> Iterator[str]:
    if not settings.chunked_prefill:
        if settings.long_prefill_threshold:
            yield (
                f"long_prefill_threshold = {settings.long_prefill_threshold} splits prompts, and chunked_prefill is"
                " off; set it to 0 or turn chunked_prefill on"
            )
        if settings.align_prefill_to_blocks:
            yield (
                "align_prefill_to_blocks splits prompts, and chunked_prefill is off; leave it out or turn"
                " chunked_prefill on"
            )
    if settings.kv == "contiguous":
        if settings.prefix_cache:
            yield "prefix_cache needs blocks, and kv is contiguous; set it to false or use kv: paged"
        if settings.kv_blocks is not None:
            yield (
                f"kv_blocks = {settings.kv_blocks} counts blocks, and kv is contiguous; set it to null or use kv: paged"
            )
    speculation = settings.speculation
    if speculation.draft_model is not None and speculation.drafter is not DrafterKind.MODEL:
        yield (
            f"speculation.draft_model is given, and speculation.drafter is {speculation.drafter.value!r}; leave it out"
            " or set drafter: model"
        )
