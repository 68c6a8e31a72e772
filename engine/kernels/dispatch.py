"""Chooses, runs and records the path of every site in a step. Knows the policy; must not know requests."""

from __future__ import annotations

from dataclasses import dataclass, field

import mlx.core as mx

from engine.kernels.linear import linear_kernel
from engine.kernels.policy import KernelPolicy
from engine.kernels.site import LinearSite
from engine.observer import Plan, SiteChoice


@dataclass(slots=True)
class Dispatcher:
    """One model's kernel choices. `begin_step` before each forward, `plan` after it.

    `wanted_rows` are the packed rows whose logits somebody asked for: the output projection runs on these alone, so
    head rows and layer rows are two different numbers.
    """

    policy: KernelPolicy
    model: str = "target"
    head_site: str | None = None
    step: int = 0
    packed_rows: int = 0
    wanted_rows: mx.array | None = None
    choices: list[SiteChoice] = field(default_factory=list)

    def begin_step(self, step: int, packed_rows: int, wanted_rows: mx.array | None) -> None:
        """Start recording a forward of `packed_rows` rows."""
        self.step = step
        self.packed_rows = packed_rows
        self.wanted_rows = wanted_rows
        self.choices = []

    def plan(self) -> Plan:
        """Every choice of the forward, in execution order."""
        return tuple(self.choices)

    def linear(self, site: LinearSite, x: mx.array) -> mx.array:
        """Run a linear site on x (..., K) and return (..., N); the head drops rows nobody asked for."""
        is_head = site.name == self.head_site
        if is_head and self.wanted_rows is not None:
            x = x[self.wanted_rows]
        flat = x.reshape(-1, x.shape[-1])
        rows = flat.shape[0]
        path, decided_by = self.policy.linear_path(self.step, site.name, rows)
        self.choices.append(
            SiteChoice(
                site=site.name,
                operation="head" if is_head else "linear",
                path=path,
                decided_by=decided_by,
                rows=rows,
                input_size=site.input_size,
                output_size=site.output_size,
                dtype=str(x.dtype).removeprefix("mlx.core."),
                bits=site.bits,
                group_size=site.group_size,
                model=self.model,
            )
        )
        out = linear_kernel(path)(site, flat)
        return out.reshape(*x.shape[:-1], out.shape[-1])

    def attention(self, site: str, heads: int, head_size: int, dtype: mx.Dtype) -> str:
        """Choose and record the path of an attention site."""
        path, decided_by = self.policy.attention_path(self.step, site)
        self.choices.append(
            SiteChoice(
                site=site,
                operation="attention",
                path=path,
                decided_by=decided_by,
                rows=self.packed_rows,
                input_size=head_size,
                output_size=heads,
                dtype=str(dtype).removeprefix("mlx.core."),
                bits=0,
                group_size=0,
                model=self.model,
            )
        )
        return path
