"""The one patch on foreign code: mlx-lm's `scaled_dot_product_attention` is rebound while a packed model is alive.

Written against mlx-lm 0.31 to 0.32 (`mlx_lm.models.base.scaled_dot_product_attention(queries, keys, values, cache,
scale, mask, sinks)`). It fails loudly when that name is gone. Calls that do not come from a packed forward reach the
original, so plain mlx-lm code keeps working while it is on. Must not know stores, policies or requests.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import base

from engine.errors import UnsupportedModelError

NAME = "scaled_dot_product_attention"
EXPECTED_PARAMETERS = ("queries", "keys", "values", "cache", "scale", "mask")


class AttendingView(Protocol):
    """What a packed forward hands to a layer as its cache, as far as attention is concerned."""

    def attend(self, queries: mx.array, scale: float, mask: Any, sinks: mx.array | None) -> mx.array:
        """Attention of all packed rows: (packed_rows, heads, 1, D) -> (packed_rows, heads, 1, D)."""
        ...


class AttentionInterception:
    """Rebinds the attention function in the modules that define a model's classes, and finds the view of a call.

    A layer is recognised by the type of its cache, else by the identity of the keys that the view returned (models
    whose later layers reuse an earlier layer's K/V pass no cache).
    """

    def __init__(self, model: nn.Module, view_type: type[AttendingView]) -> None:
        self._view_type = view_type
        self._views_by_keys: dict[int, AttendingView] = {}
        self._original: Callable[..., mx.array] = _original_attention()
        self._modules = _modules_that_name_it(model)
        self.is_active = False

    def activate(self) -> None:
        """Rebind the name; nesting is an error."""
        if self.is_active:
            raise RuntimeError("attention is intercepted already; close the packed model that does it first")
        for module in self._modules:
            setattr(module, NAME, self._call)
        self.is_active = True

    def deactivate(self) -> None:
        """Give the modules their function back."""
        for module in self._modules:
            setattr(module, NAME, self._original)
        self._views_by_keys.clear()
        self.is_active = False

    def announce(self, keys: mx.array, view: AttendingView) -> None:
        """Remember that `keys` is a handle of `view` until `forget_all`."""
        self._views_by_keys[id(keys)] = view

    def forget_all(self) -> None:
        """Drop all handles; call at the end of each forward, because ids are reused."""
        self._views_by_keys.clear()

    def _call(
        self,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        cache: Any = None,
        scale: float = 1.0,
        mask: Any = None,
        sinks: mx.array | None = None,
        **other: Any,
    ) -> mx.array:
        view = cache if isinstance(cache, self._view_type) else self._views_by_keys.get(id(keys))
        if view is None:
            return self._original(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks, **other)
        if other:
            raise UnsupportedModelError(
                f"attention was called with {', '.join(other)}, which packed rows cannot honour."
            )
        return view.attend(queries, scale, mask, sinks)


def _original_attention() -> Callable[..., mx.array]:
    original = getattr(base, NAME, None)
    if original is None:
        raise UnsupportedModelError(
            f"this mlx-lm has no mlx_lm.models.base.{NAME}; install a version from 0.31.2 to 0.32.x."
        )
    missing = [p for p in EXPECTED_PARAMETERS if p not in inspect.signature(original).parameters]
    if missing:
        raise UnsupportedModelError(
            f"mlx-lm's {NAME} has no parameter {', '.join(missing)}; install a version from 0.31.2 to 0.32.x."
        )
    return original


def _modules_that_name_it(model: nn.Module) -> list[Any]:
    classes = {c for module in model.modules() for c in type(module).__mro__}
    modules = {sys.modules[c.__module__] for c in classes if c.__module__ in sys.modules}
    return [m for m in modules if m is not base and getattr(m, NAME, None) is base.scaled_dot_product_attention]
