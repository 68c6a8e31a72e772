"""Keeps what chosen linear sites computed in a forward. Must not know why somebody wants it, nor kernels."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import mlx.core as mx

from engine.errors import SettingsError
from engine.kernels.dispatch import Dispatcher
from engine.kernels.site import LinearSite


@dataclass(slots=True)
class SiteOutputs:
    """Runs every linear site through `dispatcher` and keeps the outputs of those named in `wanted`.

    An output is kept as the array that the model goes on with, so keeping it computes nothing. Where a model calls one
    site several times in a forward, the last output is kept.
    """

    dispatcher: Dispatcher
    wanted: frozenset[str] = frozenset()
    kept: dict[str, mx.array] = field(default_factory=dict)

    def linear(self, site: LinearSite, x: mx.array) -> mx.array:
        """(..., K) -> (..., N), as the dispatcher does."""
        output = self.dispatcher.linear(site, x)
        if site.name in self.wanted:
            self.kept[site.name] = output
        return output

    def take(self) -> dict[str, mx.array]:
        """What was kept since the last call, by site, in execution order."""
        taken, self.kept = self.kept, {}
        return taken


def require_sites(names: Iterable[str], known: Collection[str], asker: str) -> None:
    """Refuse names of linear sites that the model does not have.

    Raises:
        SettingsError: `asker` names such a site; the sentence gives the nearest that there is.
    """
    unknown = sorted(set(names) - set(known))
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, n=1, cutoff=0.0)
        like = f", for example {near[0]}" if near else ""
        raise SettingsError(
            f"{asker} names {unknown[0]!r}, which is no linear site of this model; it has {len(known)}{like}."
        )
