"""The kernel policy: a pure rule from (step, site, rows) to a path. Must not know arrays or models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from engine.errors import SettingsError


class LinearPath(StrEnum):
    """Kernels of a linear site. `gemm` is named with its precision, because that changes the bits."""

    NATIVE = "native"
    GEMV = "gemv"
    GEMM_F32 = "gemm-f32"
    GEMM_F16 = "gemm-f16-operands"
    INVARIANT = "invariant"


class AttentionPath(StrEnum):
    """`segment`: one call per segment. `row`: one query per call. `invariant`: our kernel, each query alone."""

    SEGMENT = "segment"
    ROW = "row"
    INVARIANT = "invariant"


class GemmPrecision(StrEnum):
    """Operands of the GEMM path: f32, or rounded to half with f32 accumulation (what Metal's tile kernels do)."""

    F32 = "f32"
    F16_OPERANDS = "f16-operands"


RULE_HELP = "use native, gemv, gemm, threshold:N (N >= 0), tile:T (T >= 2), invariant or auto"

TunedShapes = Mapping[str, tuple[tuple[int | None, str], ...]]
"""By site shape: (most rows, path) in rising order, the last one without a limit; what tuning found."""


@dataclass(frozen=True, slots=True)
class LinearRule:
    """`native`, `gemv`, `gemm`, `invariant`, `threshold` (gemv up to `limit` rows, gemm above) or `tile` (`limit`
    rows a call).
    """

    name: str
    limit: int = 0

    def __str__(self) -> str:
        return f"{self.name}:{self.limit}" if self.name in ("threshold", "tile") else self.name


def parse_linear_rule(text: str) -> LinearRule:
    """Read `threshold:4` and friends.

    Raises:
        SettingsError: the rule is unknown or its number is out of range.
    """
    name, _, number = text.strip().partition(":")
    if name in ("native", "gemv", "gemm", "invariant", "auto") and not number:
        return LinearRule(name)
    if name in ("threshold", "tile"):
        least = 0 if name == "threshold" else 2
        try:
            limit = int(number)
        except ValueError:
            raise SettingsError(f"kernel policy {text!r}: {name} needs a whole number; {RULE_HELP}.") from None
        if limit < least:
            raise SettingsError(f"kernel policy {text!r}: {name} must be at least {least}; {RULE_HELP}.")
        return LinearRule(name, limit)
    raise SettingsError(f"kernel policy {text!r} is unknown; {RULE_HELP}.")


@dataclass(frozen=True, slots=True)
class SiteOverride:
    """A path forced at one (step, site): what a counterfactual re-run changes. `site` may end in `*`."""

    step: int
    site: str
    path: str

    def matches(self, step: int, site: str) -> bool:
        """True when this override decides the site in this step."""
        if step != self.step:
            return False
        return site.startswith(self.site[:-1]) if self.site.endswith("*") else site == self.site


@dataclass(frozen=True, slots=True)
class KernelPolicy:
    """Paths of all sites. `sites` gives rules for single sites (by exact site name) over `linear`.

    `tuned` is what the rule `auto` follows; a shape that was not tuned goes row by row.
    """

    linear: LinearRule = LinearRule("native")
    attention: AttentionPath = AttentionPath.SEGMENT
    gemm_precision: GemmPrecision = GemmPrecision.F16_OPERANDS
    sites: Mapping[str, LinearRule] = field(default_factory=dict)
    tuned: TunedShapes = field(default_factory=dict)
    overrides: tuple[SiteOverride, ...] = ()

    @property
    def gemm_path(self) -> LinearPath:
        """The path that `gemm` means under this policy's precision."""
        return LinearPath.GEMM_F32 if self.gemm_precision is GemmPrecision.F32 else LinearPath.GEMM_F16

    def is_overridden(self, step: int) -> bool:
        """True when some path is forced in `step`."""
        return any(override.step == step for override in self.overrides)

    def linear_path(self, step: int, site: str, rows: int, shape: str = "") -> tuple[str, str]:
        """Return (path, decided_by) for a linear site of a shape, with `rows` rows in `step`."""
        for override in self.overrides:
            if override.matches(step, site):
                return override.path, "override"
        rule = self.sites.get(site, self.linear)
        return self._path_of(rule, rows, shape), str(rule)

    def attention_path(self, step: int, site: str) -> tuple[str, str]:
        """Return (path, decided_by) for an attention site in `step`."""
        for override in self.overrides:
            if override.matches(step, site):
                return override.path, "override"
        return self.attention.value, f"attention={self.attention.value}"

    def with_overrides(self, overrides: tuple[SiteOverride, ...]) -> KernelPolicy:
        """The same policy with other overrides."""
        return replace(self, overrides=overrides)

    def _path_of(self, rule: LinearRule, rows: int, shape: str) -> str:
        if rule.name == "auto":
            fits = (path for most, path in self.tuned.get(shape, ()) if most is None or rows <= most)
            return next(fits, LinearPath.GEMV.value)
        if rule.name == "gemm":
            return self.gemm_path.value
        if rule.name == "threshold":
            return LinearPath.GEMV.value if rows <= rule.limit else self.gemm_path.value
        if rule.name == "tile":
            return f"tile-{rule.limit}"
        return LinearPath(rule.name).value


def forced_gemv() -> KernelPolicy:
    """Row-wise linears and one query per attention call: a row's bits depend on nothing but its own inputs."""
    return KernelPolicy(linear=LinearRule("gemv"), attention=AttentionPath.ROW)
