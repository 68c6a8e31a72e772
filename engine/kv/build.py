"""Makes the K/V store that the settings ask for."""

from __future__ import annotations

from engine.kv.contiguous import ContiguousStore
from engine.kv.store import KVStore
from engine.settings import EngineSettings


def build_store(settings: EngineSettings) -> KVStore:
    """A paged store with the pool of the settings, or the contiguous control."""
    if settings.kv == "contiguous":
        return ContiguousStore()
    from engine.kv.paged import PagedStore

    return PagedStore(settings.resolved_kv_blocks, block_size=settings.block_size, prefix_cache=settings.prefix_cache)
