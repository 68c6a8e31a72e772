"""Faults of dispatch: another kernel than the settings say. The plan of the trace says what was really taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase

from engine.batch import Batch, Segment, SegmentKind
from engine.engine import Engine
from engine.kernels.policy import KernelPolicy
from engine.kv.store import KVStore
from engine.model.packed import ForwardResult
from tests.faults.build import Fault, Forward, segment_of

Choose = Callable[[int, str, int], tuple[str, str] | None]


@dataclass(frozen=True, slots=True)
class _Table(KernelPolicy):
    """A policy that asks a rule first; overrides of a replay still win."""

    choose: Choose = lambda _step, _site, _rows: None

    def linear_path(self, step: int, site: str, rows: int, shape: str = "") -> tuple[str, str]:
        return self._chosen(step, site, rows) or KernelPolicy.linear_path(self, step, site, rows, shape)

    def attention_path(self, step: int, site: str) -> tuple[str, str]:
        return self._chosen(step, site, 0) or KernelPolicy.attention_path(self, step, site)

    def is_overridden(self, step: int) -> bool:
        """What the rule says may change with every step."""
        return True

    def _chosen(self, step: int, site: str, rows: int) -> tuple[str, str] | None:
        if any(override.matches(step, site) for override in self.overrides):
            return None
        return self.choose(step, site, rows)


@dataclass
class Dispatch(Fault):
    """Base of rules that choose paths: `rule` is what a plan says decided."""

    def choose(self, step: int, site: str, rows: int) -> tuple[str, str] | None:
        """Path and rule of a site, None to leave it to the settings; attention sites come with 0 rows."""
        raise NotImplementedError

    def strikes(self, batch: Batch) -> bool:
        """Whether the rule changes the paths of this batch."""
        raise NotImplementedError

    def built(self, engine: Engine) -> None:
        policy = engine.packed.policy
        earlier = policy.choose if isinstance(policy, _Table) else lambda _step, _site, _rows: None

        def choose(step: int, site: str, rows: int) -> tuple[str, str] | None:
            return self.choose(step, site, rows) or earlier(step, site, rows)

        kept = {field.name: getattr(policy, field.name) for field in fields(KernelPolicy)}
        engine.packed.policy = _Table(**kept, choose=choose)

    def forward(self, engine: Engine, batch: Batch, honest: Forward, store: KVStore, capture_kv: bool) -> ForwardResult:
        self.batch = batch
        if self.strikes(batch):
            for segment in batch.segments:
                self.note(batch, segment)
        return honest(batch, store, capture_kv=capture_kv)


@dataclass
class PathSwitch(Dispatch):
    """The sites that match `pattern` take `path` at one step of one request: the first that writes `position`.

    With `kind` only segments of that kind count: a recompute writes positions that were written before.
    """

    request: str
    position: int
    pattern: str
    path: str
    kind: SegmentKind | None = None
    step: int | None = field(default=None, init=False)

    def strikes(self, batch: Batch) -> bool:
        segment = segment_of(batch, self.request)
        if self.step is None and segment is not None and self._is_meant(segment):
            self.step = batch.step
        return self.step == batch.step

    def _is_meant(self, segment: Segment) -> bool:
        return segment.first_position <= self.position < segment.end_position and self.kind in (None, segment.kind)

    def choose(self, step: int, site: str, rows: int) -> tuple[str, str] | None:
        return (self.path, "tuned") if step == self.step and fnmatchcase(site, self.pattern) else None


@dataclass
class HoleyTable(Dispatch):
    """Linears take `path` at exactly these row counts: a dispatch table with holes instead of one threshold."""

    rows: frozenset[int]
    path: str

    def strikes(self, batch: Batch) -> bool:
        return batch.packed_rows in self.rows

    def choose(self, step: int, site: str, rows: int) -> tuple[str, str] | None:
        is_layer = ".layers." in site and rows > 0
        return (self.path, f"table:{','.join(map(str, sorted(self.rows)))}") if is_layer and rows in self.rows else None


@dataclass
class BatchMaximum(Dispatch):
    """Attention of every row takes `path` where the longest segment of the batch has more than `limit` rows."""

    limit: int
    path: str

    def strikes(self, batch: Batch) -> bool:
        return batch.max_query_length > self.limit

    def choose(self, step: int, site: str, rows: int) -> tuple[str, str] | None:
        return (self.path, f"max_query:{self.limit}") if rows == 0 and self.strikes(self.batch) else None


@dataclass
class SplitByLength(Dispatch):
    """Attention takes `path` where the longest context of the batch has more than `limit` keys."""

    limit: int
    path: str

    def strikes(self, batch: Batch) -> bool:
        return batch.max_key_length > self.limit

    def choose(self, step: int, site: str, rows: int) -> tuple[str, str] | None:
        return (self.path, f"max_key:{self.limit}") if rows == 0 and self.strikes(self.batch) else None


@dataclass
class AlwaysPath(Dispatch):
    """Linears of the layers take one path at every step."""

    path: str

    def strikes(self, batch: Batch) -> bool:
        return True

    def choose(self, step: int, site: str, rows: int) -> tuple[str, str] | None:
        return (self.path, "build") if ".layers." in site and rows > 0 else None
