"""A workload file: the model, the requests, their arrivals, and the arms to compare. YAML, validated at the door."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
)

from engine.errors import SettingsError
from engine.model.tokenizer import Tokenizer
from engine.request import Arrival, Request, SamplingParams
from engine.settings import EngineSettings, Strict, describe_validation_error, parse_settings
from engine.settings_check import refuse_without_effect

MAX_WORKLOAD_BYTES = 16 * 1024 * 1024


class AfterRule(Strict):
    """Submitted once `request` has committed `tokens` output tokens."""

    request: str
    tokens: PositiveInt = 1


class ArrivalSpec(Strict):
    """When the request enters the queue. Both may be given: then both must hold."""

    at_step: NonNegativeInt = 0
    after: AfterRule | None = None


class SamplingSpec(Strict):
    """Sampling parameters; the defaults are greedy."""

    temperature: NonNegativeFloat = 0.0
    top_k: NonNegativeInt = 0
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    repetition_penalty: PositiveFloat = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = Field(default_factory=dict)
    seed: NonNegativeInt = 0


def _text_id(value: Any) -> Any:
    return str(value) if isinstance(value, int) else value


class RequestSpec(Strict):
    """One request. Exactly one of `chat` (one user message), `messages`, `prompt` (raw text), `prompt_tokens`."""

    id: Annotated[str, BeforeValidator(_text_id), Field(min_length=1, max_length=200)]
    chat: str | None = None
    messages: list[dict[str, str]] | None = None
    prompt: str | None = None
    prompt_tokens: list[NonNegativeInt] | None = None
    max_tokens: PositiveInt
    ignore_eos: bool = False
    stop: list[str] = Field(default_factory=list)
    stop_token_ids: list[NonNegativeInt] = Field(default_factory=list)
    sampling: SamplingSpec = Field(default_factory=SamplingSpec)
    priority: int = 0
    arrival: ArrivalSpec = Field(default_factory=ArrivalSpec)
    cancel_at_step: NonNegativeInt | None = None
    timeout_s: PositiveFloat | None = None
    samples: PositiveInt = 1


class WorkloadSpec(Strict):
    """The whole file. `settings` apply to every arm; an arm's own settings win."""

    version: Literal[1] = 1
    model: str
    dtype: str = "float32"
    title: str = ""
    requests: list[RequestSpec] = Field(min_length=1)
    settings: dict[str, Any] = Field(default_factory=dict)
    arms: dict[str, dict[str, Any]] = Field(default_factory=dict)

    def arm_settings(self, arm: str, changes: Mapping[str, Any], where: str) -> EngineSettings:
        """Settings of one arm: the file's, then the arm's, then `changes`.

        Raises:
            SettingsError: a field or value makes no sense, or has no effect beside another; `where` names the file.
        """
        merged = {**self.settings, **self.arms.get(arm, {}), **changes}
        if any(request.samples > 1 for request in self.requests) and merged.get("kv", "paged") == "paged":
            merged.setdefault("prefix_cache", True)  # samples of one prompt share its blocks
        place = f"{where}, arm {arm!r}"
        settings = parse_settings(merged, place)
        refuse_without_effect(settings, place)
        return settings


def read_workload(path: Path) -> WorkloadSpec:
    """Read and validate a workload file.

    Raises:
        SettingsError: it does not exist, is no YAML, or a field is wrong; one sentence.
    """
    try:
        if path.stat().st_size > MAX_WORKLOAD_BYTES:
            raise SettingsError(f"{path} is larger than {MAX_WORKLOAD_BYTES} bytes; it is hardly a workload file.")
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}; give the path of a workload file.") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path} is not UTF-8 text; give the path of a workload file (YAML).") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 1}" if mark is not None else ""
        raise SettingsError(f"{path} is not valid YAML{place}; correct the file.") from None
    return parse_workload(values, str(path))


def parse_workload(values: Any, where: str) -> WorkloadSpec:
    """Validate an already parsed workload; `where` names its source in errors.

    Raises:
        SettingsError: a field is wrong, an id occurs twice, or an arrival names an unknown request.
    """
    if not isinstance(values, dict):
        raise SettingsError(f"{where} holds no workload: it must be a mapping with 'model' and 'requests'.")
    try:
        spec = WorkloadSpec.model_validate(values)
    except ValidationError as error:
        raise SettingsError(describe_validation_error(error, where)) from None
    ids = [request.id for request in spec.requests]
    for request in spec.requests:
        if ids.count(request.id) > 1:
            raise SettingsError(f"{where}: request id {request.id!r} occurs more than once; ids are unique.")
        after = request.arrival.after
        if after is not None and (after.request not in ids or after.request == request.id):
            raise SettingsError(
                f"{where}: request {request.id!r} arrives after {after.request!r}, which is no other request."
            )
    return spec


def build_requests(spec: WorkloadSpec, tokenizer: Tokenizer) -> list[Request]:
    """Tokenize every request; `samples: n` becomes n requests `id/0 .. id/n-1` that share their prompt.

    Raises:
        SettingsError: a request has no prompt or more than one kind of it.
    """
    requests: list[Request] = []
    sampled = {item.id for item in spec.requests if item.samples > 1}
    for item in spec.requests:
        names = [item.id] if item.samples == 1 else [f"{item.id}/{i}" for i in range(item.samples)]
        first, *others = (_build_request(item, name, tokenizer, sampled) for name in names)
        requests += [first, *(replace(other, sample_of=first.id) for other in others)]
    return requests


def _build_request(item: RequestSpec, name: str, tokenizer: Tokenizer, sampled: Set[str]) -> Request:
    after = item.arrival.after
    # Samples go by numbers: who waits for a request with samples waits for its first one.
    awaited = None if after is None else f"{after.request}/0" if after.request in sampled else after.request
    sampling = item.sampling.model_dump()
    sampling["logit_bias"] = tuple(sorted(item.sampling.logit_bias.items()))
    return Request(
        id=name,
        prompt=_prompt_tokens(item, tokenizer),
        max_tokens=item.max_tokens,
        sampling=SamplingParams(**sampling),
        stop_token_ids=tuple(item.stop_token_ids),
        stop_strings=tuple(item.stop),
        ignore_eos=item.ignore_eos,
        priority=item.priority,
        arrival=Arrival(item.arrival.at_step, awaited, after.tokens if after else 0),
        cancel_at_step=item.cancel_at_step,
        timeout_s=item.timeout_s,
    )


def _prompt_tokens(item: RequestSpec, tokenizer: Tokenizer) -> tuple[int, ...]:
    given = [name for name in ("chat", "messages", "prompt", "prompt_tokens") if getattr(item, name) is not None]
    if len(given) != 1:
        raise SettingsError(
            f"request {item.id!r} needs exactly one of chat, messages, prompt, prompt_tokens; it has "
            f"{', '.join(given) or 'none'}."
        )
    if item.prompt_tokens is not None:
        return tuple(item.prompt_tokens)
    if item.prompt is not None:
        return tuple(tokenizer.encode(item.prompt))
    messages = item.messages or [{"role": "user", "content": item.chat or ""}]
    return tuple(tokenizer.apply_chat_template(messages))
