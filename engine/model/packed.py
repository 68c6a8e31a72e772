"""An unmodified mlx-lm model, run on packed rows of many requests. Must not know scheduling or sampling."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import numpy.typing as npt
from mlx_lm.models import cache as mlx_lm_cache

from engine.batch import Batch, Segment, SegmentKind
from engine.errors import UnsupportedModelError
from engine.kernels.dispatch import Dispatcher
from engine.kernels.policy import KernelPolicy
from engine.kernels.site import LinearSite
from engine.kernels.tile_verdicts import require_tiles
from engine.kv.contiguous import ContiguousStore
from engine.kv.store import KVStore
from engine.model.interception import AttentionInterception
from engine.model.invariant_attention import InvariantAttention
from engine.model.layer_view import ForwardContext, LayerView
from engine.model.leaves import instrument, uninstrument
from engine.model.site_outputs import SiteOutputs, require_sites
from engine.observer import LayerRows, Plan


@dataclass(frozen=True, slots=True)
class ForwardResult:
    """`logits`: float32 (head_rows, vocabulary), in segment order. `kv_rows`: one entry per layer when captured.

    `tensors`: outputs of the sites that are kept, by name, (rows, 1, N) and computed already.
    """

    logits: npt.NDArray[np.float32]
    plan: Plan
    kv_rows: tuple[LayerRows, ...] | None
    tensors: Mapping[str, mx.array] = field(default_factory=dict)


class PackedModel:
    """Runs steps of packed rows through an mlx-lm model whose layers keep K/V rows.

    The model is instrumented until `close`. One packed model per mlx-lm model at a time. SettingsError is raised for a
    policy `tile:T` that does not hold on this machine, and for one that names a site which the model does not have.
    """

    def __init__(self, model: nn.Module, policy: KernelPolicy, role: str = "target") -> None:
        self.model = model
        self.dispatcher = Dispatcher(policy, model=role)
        self.windows = _attention_windows(model)
        self.layers = len(self.windows)
        self._interception = AttentionInterception(model, LayerView)
        self._attention_sites = _attention_sites(model, self.layers)
        self._outputs = SiteOutputs(self.dispatcher)
        self.sites: dict[str, LinearSite] = instrument(model, self._outputs)
        self._interception.activate()
        try:
            if role == "target":  # a draft model may lack sites of the target, under whose policy it runs
                require_sites(policy.sites, self.sites, "site_policies")
            require_tiles(policy, self.sites.values())
            self.dispatcher.head_site = self._find_head()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the model its own classes and functions back."""
        self._interception.deactivate()
        uninstrument(self.model)

    def __enter__(self) -> PackedModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def policy(self) -> KernelPolicy:
        """The kernel policy in force."""
        return self.dispatcher.policy

    @policy.setter
    def policy(self, policy: KernelPolicy) -> None:
        self.dispatcher.policy = policy

    def keep_outputs(self, sites: Collection[str]) -> None:
        """Have every forward from now on keep the outputs of these linear sites.

        Raises:
            SettingsError: the model has no such site.
        """
        require_sites(sites, self.sites, "the choice of tensors")
        self._outputs.wanted = frozenset(sites)

    def forward(self, batch: Batch, store: KVStore, capture_kv: bool = False) -> ForwardResult:
        """One forward over all rows of `batch`. The store must have room for every segment.

        Raises:
            UnsupportedModelError: a layer did something that packed rows cannot honour.
        """
        store.begin_step(batch)
        capture: list[LayerRows] | None = [] if capture_kv else None
        wanted = mx.array(batch.wanted_rows)
        self.dispatcher.begin_step(batch.step, batch.packed_rows, wanted)
        context = ForwardContext(
            batch=batch,
            store=store,
            dispatcher=self.dispatcher,
            interception=self._interception,
            offsets=mx.array(batch.positions),
            capture=capture,
            invariant_attention=InvariantAttention(batch, store),
        )
        views = [
            LayerView(layer, self._attention_sites[layer], window, context) for layer, window in enumerate(self.windows)
        ]
        try:
            out = self.model(mx.array(batch.token_ids)[:, None], cache=views)
        finally:
            self._interception.forget_all()
        skipped = [view.layer for view in views if view.attend_calls == 0]
        if skipped:
            raise UnsupportedModelError(
                f"{type(self.model).__module__}: layers {skipped[:4]} compute attention on their own; "
                "packed rows need mlx-lm's scaled_dot_product_attention."
            )
        logits = out[:, -1, :]
        if self.dispatcher.head_site is None:
            logits = logits[wanted]
        kept = tuple(capture) if capture is not None else None
        tensors = self._outputs.take()
        return ForwardResult(self._to_numpy(logits, kept, tensors), self.dispatcher.plan(), kept, tensors)

    def _to_numpy(
        self, logits: mx.array, kept: tuple[LayerRows, ...] | None, tensors: Mapping[str, mx.array]
    ) -> npt.NDArray[np.float32]:
        # One evaluation for everything: what is captured must not be evaluated on its own (it could change a kernel).
        arrays: list[Any] = [logits.astype(mx.float32), *tensors.values()]
        if kept is not None:
            arrays += [a for rows in kept for a in (rows.keys, rows.values)]
        mx.eval(*arrays)
        return np.array(arrays[0], copy=False)

    def _find_head(self) -> str | None:
        """The last linear of a forward, when its width is the vocabulary's; None when the head is no leaf."""
        store = ContiguousStore()
        store.admit("head-search", (1,))
        store.grow("head-search", 1)
        batch = Batch(0, (Segment("head-search", SegmentKind.PREFILL, 0, (1,), 0, 1),))
        result = self.forward(batch, store)
        linears = [choice for choice in result.plan if choice.operation == "linear"]
        is_head = bool(linears) and linears[-1].output_size == result.logits.shape[-1]
        return linears[-1].site if is_head else None


def _attention_windows(model: nn.Module) -> list[int | None]:
    windows: list[int | None] = []
    for layer, cache in enumerate(mlx_lm_cache.make_prompt_cache(model)):
        if type(cache) is mlx_lm_cache.KVCache:
            windows.append(None)
        elif type(cache) is mlx_lm_cache.RotatingKVCache:
            windows.append(int(cache.max_size))
        else:
            raise UnsupportedModelError(
                f"{type(model).__module__}: layer {layer} keeps a {type(cache).__name__}, not K/V rows; "
                "this engine runs models whose layers keep plain K/V."
            )
    return windows


def _attention_sites(model: nn.Module, layers: int) -> list[str]:
    """Module path of each layer's attention, `layers.N.attention` where it cannot be told."""
    found: dict[int, str] = {}
    for path, _ in model.named_modules():
        match = re.fullmatch(r"(?:.*\.)?(?:layers|h|blocks)\.(\d+)\.(?:self_attn|attention|attn|self_attention)", path)
        if match:
            found[int(match.group(1))] = path
    return [found.get(layer, f"layers.{layer}.attention") for layer in range(layers)]
