"""What a report page is made of, typed and JSON-ready: columns of numbers, strings by index. Knows no HTML, no HDF5.

All columns of one record have the same length. A `None` in a column of floats means not recorded or not comparable.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from divtrace.show.paths import PathGroup

Floats = list[float | None]


@dataclass(frozen=True, slots=True)
class StepColumns:
    """One value a step. `plan` is an index into `RunColumns.plans`; `forward_ms` in milliseconds."""

    packed_rows: list[int]
    head_rows: list[int]
    plan: list[int]
    running: list[int]
    waiting: list[int]
    blocks_used: list[int]
    forward_ms: Floats


@dataclass(frozen=True, slots=True)
class BarColumns:
    """Runs of consecutive segments of one request: same kind, same rows, each where the one before ended.

    Segment number i of a bar lies in step `step + i` at position `position + i * rows`. Where `is_exact` is False the
    run was too long for a page: bars then join segments of one kind whatever their rows, and hold the largest.
    """

    request: list[int]
    kind: list[int]
    step: list[int]
    steps: list[int]
    position: list[int]
    rows: list[int]
    logits: list[int]
    cached: list[int]
    proposed: list[int]
    is_exact: bool


@dataclass(frozen=True, slots=True)
class EventColumns:
    """Admissions, ends and preemptions; `kind` and `detail` are indices into `Report.strings`."""

    step: list[int]
    request: list[int]
    kind: list[int]
    detail: list[int]


@dataclass(frozen=True, slots=True)
class PlanPage:
    """One plan: its main path and the groups of sites behind it."""

    main: str
    groups: tuple[PathGroup, ...]


@dataclass(frozen=True, slots=True)
class RunColumns:
    """One run. `threshold` is the row count up to which its linears go row by row, None without such a rule."""

    name: str
    label: str
    ending: str
    level: str
    requests: list[str]
    steps: StepColumns
    bars: BarColumns
    kinds: tuple[str, ...]
    events: EventColumns
    plans: list[PlanPage]
    blocks_total: int
    threshold: int | None


@dataclass(frozen=True, slots=True)
class TopColumns:
    """The `k` largest processed logits of each decision, one decision after another."""

    k: int
    tokens: list[int]
    texts: list[int]
    logits: Floats


@dataclass(frozen=True, slots=True)
class RequestSide:
    """One request in one run: every token, and a value for each output token. `number` is its row in the run."""

    number: int
    tokens: list[int]
    texts: list[int]
    steps: list[int]
    gaps: Floats
    top: TopColumns | None


@dataclass(frozen=True, slots=True)
class RequestPage:
    """One request to read. `split` is the first position with different tokens. The drifts are per output token.

    `margin_drift`: how far the margin of A's two best tokens moved; `logit_drift`: the largest move of any logit that
    both runs recorded.
    """

    id: str
    prompt_tokens: int
    split: int | None
    a: RequestSide | None
    b: RequestSide | None
    margin_drift: Floats
    logit_drift: Floats


@dataclass(frozen=True, slots=True)
class KvMap:
    """KV rows of the explained request, one byte a (position, layer), position after position, in base64.

    0: not recorded in both runs. 1: equal bits. 2: other bits, same largest element. 3 to 255: the difference of the
    largest elements, on a logarithmic scale from `smallest` to `largest`. A byte covers `bin_positions` positions.
    """

    positions: int
    layers: int
    bin_positions: int
    cells: str
    smallest: float | None
    largest: float | None
    steps_a: list[int]
    steps_b: list[int]
    compared_rows: int
    differing_rows: int


@dataclass(frozen=True, slots=True)
class OriginMark:
    """Where an origin lies in both runs. `run`: 0 or 1, the run that left its usual kernels; `joined`: who came in."""

    step_a: int
    step_b: int
    request_a: int
    request_b: int
    positions: list[tuple[int, int]]
    layer: int
    is_cause: bool
    run: int
    joined: list[str]


@dataclass(frozen=True, slots=True)
class Focus:
    """The decision that is explained. `request` is an index into `Report.requests`; carriers are position ranges."""

    request: int
    position: int
    step_a: int | None
    step_b: int | None
    flipped: bool
    origins: list[OriginMark]
    carriers: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that the page's script draws."""

    runs: list[RunColumns]
    requests: list[RequestPage]
    left_out_requests: int
    strings: list[str]
    focus: Focus | None
    kv: KvMap | None


@dataclass(slots=True)
class StringTable:
    """Strings by index, each kept once."""

    strings: list[str] = field(default_factory=list)
    _known: dict[str, int] = field(default_factory=dict)

    def add(self, text: str) -> int:
        """Index of `text`."""
        if text not in self._known:
            self._known[text] = len(self.strings)
            self.strings.append(text)
        return self._known[text]
