"""Makes model drafters: from a second model, or from the first layers of the target. Must not know requests."""

from __future__ import annotations

from typing import Any, cast

import mlx.nn as nn

from engine.errors import SettingsError, UnsupportedModelError
from engine.kernels.policy import KernelPolicy
from engine.kv.store import KVStore
from engine.model.leaves import uninstrument
from engine.model.load import LoadedModel
from engine.model.packed import PackedModel
from engine.speculative.acceptance import Acceptance
from engine.speculative.model_drafter import ModelDrafter


def second_model_drafter(
    target: LoadedModel,
    draft: LoadedModel,
    policy: KernelPolicy,
    *,
    store: KVStore | None = None,
    acceptance: Acceptance = Acceptance.EQUALITY,
    capture_kv: bool = False,
) -> ModelDrafter:
    """A drafter that runs `draft` under its own `policy`.

    Raises:
        SettingsError: the models do not share a vocabulary.
        UnsupportedModelError: the draft model cannot be run on packed rows.
    """
    check_shared_vocabulary(target, draft)
    packed = PackedModel(draft.model, policy, role="draft")
    return ModelDrafter(packed, target.vocabulary_size, store=store, acceptance=acceptance, capture_kv=capture_kv)


def self_drafter(
    target: LoadedModel,
    layers: int,
    policy: KernelPolicy,
    *,
    store: KVStore | None = None,
    acceptance: Acceptance = Acceptance.EQUALITY,
    capture_kv: bool = False,
) -> ModelDrafter:
    """A drafter that runs the target's first `layers` layers, its final norm and its head; weights are shared.

    The target may be instrumented already, and its K/V is not touched: the draft computes rows of its own.

    Raises:
        SettingsError: `layers` is not below the target's number of layers.
        UnsupportedModelError: the model's first layers cannot be run alone.
    """
    if not 1 <= layers < target.layers:
        raise SettingsError(
            f"self_layers is {layers}, but must be from 1 to {target.layers - 1}: "
            f"{target.source} has {target.layers} layers."
        )
    model = first_layers(target.model, layers)
    try:
        packed = PackedModel(model, policy, role="draft")
    except (IndexError, TypeError) as error:
        raise _cannot_be_cut(target.model, layers) from error
    if packed.layers != layers:
        packed.close()
        raise _cannot_be_cut(target.model, layers)
    return ModelDrafter(
        packed,
        target.vocabulary_size,
        name="self",
        store=store,
        acceptance=acceptance,
        capture_kv=capture_kv,
    )


def check_shared_vocabulary(target: LoadedModel, draft: LoadedModel) -> None:
    """Check that every id that both models know stands for the same bytes; one head may be wider by padding.

    Raises:
        SettingsError: names the first id that differs.
    """
    if target.tokenizer_hash == draft.tokenizer_hash:
        return
    for token in range(min(target.vocabulary_size, draft.vocabulary_size)):
        ours, theirs = target.tokenizer.token_bytes(token), draft.tokenizer.token_bytes(token)
        if ours != theirs:
            raise SettingsError(
                f"draft model {draft.source} does not share the vocabulary of {target.source}: token {token} "
                f"is {theirs!r} there and {ours!r} here; choose a draft of the same family."
            )


def first_layers(model: nn.Module, layers: int) -> nn.Module:
    """A model of the first `layers` layers of `model`: modules are copied, arrays shared, instruments left out.

    Raises:
        UnsupportedModelError: no module holds the list of layers.
    """
    copied = cast("nn.Module", _share(model, {}))
    uninstrument(copied)
    # Some classes give a slice of their list of layers, so the list is known by what it holds.
    whole = list(getattr(copied, "layers", ()))
    for owner in copied.modules():
        for key, value in owner.items():
            if whole and isinstance(value, list) and list(map(id, value)) == list(map(id, whole)):
                owner[key] = value[:layers]
                return copied
    raise _cannot_be_cut(model, layers)


def _share(value: Any, copies: dict[int, Any]) -> Any:
    """Copy modules and the containers that hold them; whatever occurs twice stays one thing."""
    if id(value) in copies:
        return copies[id(value)]
    if isinstance(value, nn.Module):
        module = copies[id(value)] = cast("Any", type(value)).__new__(type(value))
        module.__dict__.update(value.__dict__)
        for key, child in value.items():
            dict.__setitem__(module, key, _share(child, copies))
        return module
    if isinstance(value, list):
        items = copies[id(value)] = []
        items.extend(_share(item, copies) for item in value)
        return items
    if type(value) is dict:
        return {key: _share(item, copies) for key, item in value.items()}
    if type(value) is tuple:
        return tuple(_share(item, copies) for item in value)
    return value


def _cannot_be_cut(model: nn.Module, layers: int) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{type(model).__module__}: the first {layers} layers cannot be run alone; use a second draft model "
        "or prompt lookup."
    )
