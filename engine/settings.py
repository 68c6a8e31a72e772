"""Every knob of a run, validated once. The resolved object (never what was asked for) goes into the trace."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError, model_validator

from engine.errors import SettingsError
from engine.kernels.policy import AttentionPath, GemmPrecision, KernelPolicy, SiteOverride, parse_linear_rule
from engine.speculative.acceptance import Acceptance

LONGEST_ADAPTED = 8
"""Tokens that an adapting proposal may grow to, as in mini-vllm-rs."""


class BudgetUnit(StrEnum):
    """`rows`: every packed row costs 1. `work`: a decode or a verification costs 1, however many rows it has."""

    ROWS = "rows"
    WORK = "work"


class SchedulingPolicy(StrEnum):
    """Who goes first among waiting requests and unfinished prefills."""

    FCFS = "fcfs"
    PRIORITY = "priority"
    SHORTEST_PREFILL = "shortest-prefill"
    ROUND_ROBIN = "round-robin"
    LONGEST_CACHED_PREFIX = "longest-cached-prefix"


class AdmissionPolicy(StrEnum):
    """`reserve`: worst case, never preempts. `optimistic`: may preempt and recompute. `static`: a group at a time."""

    RESERVE = "reserve"
    OPTIMISTIC = "optimistic"
    STATIC = "static"


class DrafterKind(StrEnum):
    """Where draft tokens come from."""

    NONE = "none"
    PROMPT_LOOKUP = "prompt-lookup"
    SELF = "self"
    MODEL = "model"


class ProposalPolicy(StrEnum):
    """How many tokens to propose."""

    FIXED = "fixed"
    ACCEPTANCE_RATE = "acceptance-rate"
    ACCEPTED_LENGTH = "accepted-length"
    BATCH_SIZE = "batch-size"


class Strict(BaseModel):
    """Frozen, and unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SpeculationSettings(Strict):
    """Speculative decoding. `bonus`: verify K + 1 rows and keep the bonus token; off: K rows (as mini-vllm-rs does).

    `acceptance` matters to sampled requests alone: `equality` keeps the tokens of plain decoding, `rejection` keeps
    their distribution and accepts more often.
    """

    drafter: DrafterKind = DrafterKind.NONE
    proposal: ProposalPolicy = ProposalPolicy.FIXED
    tokens: PositiveInt = Field(default=4, le=16)
    bonus: bool = True
    draft_model: str | None = None
    self_layers: PositiveInt = 4
    acceptance: Acceptance = Acceptance.EQUALITY

    @property
    def most_tokens(self) -> int:
        """The longest proposal that the policy may come to; lengths that adapt start at `tokens` and may grow."""
        adapts = self.proposal in (ProposalPolicy.ACCEPTANCE_RATE, ProposalPolicy.ACCEPTED_LENGTH)
        return max(LONGEST_ADAPTED, self.tokens) if adapts else self.tokens


class EngineSettings(Strict):
    """The resolved configuration of a run. Token and row counts are per step unless said otherwise.

    `audit_every`: check K/V bookkeeping after every so many steps, 0 for never.
    """

    policy: str = "threshold:4"
    gemm: GemmPrecision = GemmPrecision.F16_OPERANDS
    attention: AttentionPath | None = None
    site_policies: dict[str, str] = Field(default_factory=dict)
    tuned: dict[str, tuple[tuple[PositiveInt | None, str], ...]] = Field(default_factory=dict)
    max_active: PositiveInt = 8
    token_budget: PositiveInt = 512
    budget_unit: BudgetUnit = BudgetUnit.ROWS
    chunked_prefill: bool = True
    long_prefill_threshold: NonNegativeInt = 0
    max_model_length: PositiveInt = 4096
    scheduling: SchedulingPolicy = SchedulingPolicy.FCFS
    admission: AdmissionPolicy = AdmissionPolicy.RESERVE
    kv: str = Field(default="paged", pattern="^(paged|contiguous)$")
    kv_blocks: PositiveInt | None = None
    block_size: PositiveInt = 16
    prefix_cache: bool = False
    align_prefill_to_blocks: bool = False
    audit_every: NonNegativeInt = 0
    blas_threads: PositiveInt | None = None
    speculation: SpeculationSettings = Field(default_factory=SpeculationSettings)

    @model_validator(mode="after")
    def _rules_parse(self) -> EngineSettings:
        rules = (self.policy, *self.site_policies.values())
        for rule in rules:
            try:
                parse_linear_rule(rule)
            except SettingsError as error:
                raise ValueError(str(error)) from None
        if "auto" in rules and not self.tuned:
            raise ValueError("policy auto needs what tuning found; run divtrace tune and give its file")
        return self

    @property
    def resolved_attention(self) -> AttentionPath:
        """The attention path: as asked for, else `row` under forced GEMV, `invariant` under invariant, else
        `segment`.
        """
        if self.attention is not None:
            return self.attention
        by_policy = {"gemv": AttentionPath.ROW, "invariant": AttentionPath.INVARIANT}
        return by_policy.get(self.policy, AttentionPath.SEGMENT)

    @property
    def resolved_kv_blocks(self) -> int:
        """Blocks in the pool: as asked for, else enough for every active request at full length."""
        if self.kv_blocks is not None:
            return self.kv_blocks
        return self.max_active * -(-self.max_model_length // self.block_size)

    def kernel_policy(self, overrides: tuple[SiteOverride, ...] = ()) -> KernelPolicy:
        """The kernel policy that these settings describe."""
        return KernelPolicy(
            linear=parse_linear_rule(self.policy),
            attention=self.resolved_attention,
            gemm_precision=self.gemm,
            tuned=self.tuned,
            sites={site: parse_linear_rule(rule) for site, rule in self.site_policies.items()},
            overrides=overrides,
        )

    def resolved(self) -> dict[str, Any]:
        """JSON-ready, with every default filled in."""
        values = self.model_dump(mode="json")
        values["attention"] = self.resolved_attention.value
        values["kv_blocks"] = self.resolved_kv_blocks if self.kv == "paged" else None
        return values


def parse_settings(values: Mapping[str, Any], where: str) -> EngineSettings:
    """Validate a mapping (from YAML, a trace or the command line).

    Raises:
        SettingsError: one sentence naming the field, its value, and `where` it stands.
    """
    try:
        return EngineSettings.model_validate(dict(values))
    except ValidationError as error:
        raise SettingsError(describe_validation_error(error, where)) from None


def describe_validation_error(error: ValidationError, where: str) -> str:
    """The first complaint of pydantic in one sentence."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"]) or "value"
    message = first["msg"].removeprefix("Value error, ").rstrip(".")
    if not first["loc"]:
        return f"{where}: {message}."
    if first["type"] == "extra_forbidden":
        return f"{where}: {field} is not a known field; check its spelling."
    if first["type"] == "missing":
        return f"{where}: {field} is missing; add it."
    return f"{where}: {field} = {first.get('input')!r} is wrong: {message}."
