"""Refuses `tile:T` where it does not hold, and keeps what was found in the user's cache. Must not know steps."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import platformdirs
from threadpoolctl import threadpool_info

from engine.environment import package_version, processor_name
from engine.errors import SettingsError
from engine.kernels.linear import on_cpu
from engine.kernels.policy import KernelPolicy
from engine.kernels.site import LinearSite
from engine.kernels.tiles import tile_hides_the_index

CACHE_VARIABLE = "DIVTRACE_CACHE"
CACHE_VERSION = 1
MOST_CACHE_BYTES = 4 * 1024 * 1024
SUGGESTIONS = (8, 4, 16, 2)
"""Sizes to name in a refusal, in this order, where one of them holds."""


def require_tiles(policy: KernelPolicy, sites: Iterable[LinearSite]) -> None:
    """Check every tile that the policy would run, each size and shape once; kept by machine, BLAS and threads.

    Raises:
        SettingsError: a row's bits would depend on its place in the tile; names the shape and, if one is found, a size
            that holds.
    """
    tiled = list(_tiled_sites(policy, sites))
    if not tiled:
        return
    verdicts = TileVerdicts(verdicts_path(), machine_key())
    for tile_rows, site in tiled:
        if not verdicts.holds(site, tile_rows):
            verdicts.save()
            raise SettingsError(_refusal(tile_rows, site, [site for _, site in tiled], verdicts))
    verdicts.save()


def machine_key() -> str:
    """Everything that a verdict holds for: processor, BLAS with its kernels and threads, versions."""
    pools = (pool for pool in threadpool_info() if pool["user_api"] == "blas")
    blas = sorted(
        f"{pool['internal_api']} {pool['version']} {pool.get('architecture')} x{pool['num_threads']}" for pool in pools
    )
    versions = [f"{name} {package_version(name)}" for name in ("numpy", "mlx")]
    return "; ".join([processor_name(), "cpu" if on_cpu() else "gpu", *blas, *versions])


def verdicts_path() -> Path:
    """`tiles.json` below $DIVTRACE_CACHE, or below the user's cache directory."""
    override = os.environ.get(CACHE_VARIABLE)
    root = Path(override).expanduser() if override else platformdirs.user_cache_path("divtrace")
    return root / "tiles.json"


class TileVerdicts:
    """What was found on one machine, by tile and shape. A file that cannot be read or written only costs time."""

    def __init__(self, path: Path, machine: str) -> None:
        self._path, self._machine = path, machine
        self._found: dict[str, bool] = _read(path).get(machine, {})
        self._is_new = False

    def holds(self, site: LinearSite, tile_rows: int) -> bool:
        """True when the index within `tile_rows` rows does not show; run once, then remembered."""
        key = f"{tile_rows} rows of {site.shape_name}"
        if key not in self._found:
            self._found[key] = tile_hides_the_index(site, tile_rows)
            self._is_new = True
        return self._found[key]

    def save(self) -> None:
        """Add what is new to the file, in one move, keeping what other machines and processes put there."""
        if not self._is_new:
            return
        machines = _read(self._path)
        machines[self._machine] = machines.get(self._machine, {}) | self._found
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._path.parent, prefix="tiles-")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"version": CACHE_VERSION, "machines": machines}, file, indent=1)
            os.replace(name, self._path)  # noqa: PTH105


def _read(path: Path) -> dict[str, dict[str, bool]]:
    try:
        if path.stat().st_size > MOST_CACHE_BYTES:
            return {}
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        if content["version"] != CACHE_VERSION:
            return {}
        return {
            str(machine): {str(key): held for key, held in found.items() if isinstance(held, bool)}
            for machine, found in content["machines"].items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def _tiled_sites(policy: KernelPolicy, sites: Iterable[LinearSite]) -> Iterator[tuple[int, LinearSite]]:
    seen: set[tuple[int, str]] = set()
    for site in sites:
        rule = policy.sites.get(site.name, policy.linear)
        if rule.name == "tile" and (rule.limit, site.shape_name) not in seen:
            seen.add((rule.limit, site.shape_name))
            yield rule.limit, site


def _refusal(tile_rows: int, site: LinearSite, sites: list[LinearSite], verdicts: TileVerdicts) -> str:
    holding = (size for size in SUGGESTIONS if all(verdicts.holds(each, size) for each in sites))
    better = next(holding, None)
    verdicts.save()
    advice = f"tile:{better} holds here" if better else "no size tried holds here"
    return (
        f"kernel policy tile:{tile_rows}: in calls of {tile_rows} rows a row's bits depend on its place for weights"
        f" {site.shape_name} with this machine's kernels; {advice}, and gemv holds everywhere."
    )
