"""Small pairs of runs for report tests: one that flips after a shared batch, and one full of hostile text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from divtrace.trace.reader import Trace, open_trace
from engine.batch import SegmentKind
from engine.observer import LifecycleEvent, RunInfo
from tests.divtrace.trace.builders import TraceBuilder, segment

HOSTILE_TEXTS = (
    "</script><script>window.hacked = 1</script>",
    '"><img src=x onerror="window.hacked = 2">',
    "{{ 7 * 7 }}{% raw %}",
    "\x1b[2J\x00\x07",
    "\u202eevil\u2066",
    "שלום עליכם",
    "مرحبا",
    "👩‍👩‍👧 ✂️",
    "line\nbreak\u2028 & 'quotes' \"",
    "<!--",
)
HOSTILE_ID = "</script><b>id</b>\u202e"


class TextBuilder(TraceBuilder):
    """A builder whose token n has the n-th of `texts`."""

    texts: tuple[bytes, ...] = ()

    def info(self) -> RunInfo:
        """Facts about the run, with these texts."""
        return replace(super().info(), token_bytes=lambda token: self.texts[token % len(self.texts)])


def write_flip(path: Path, is_shared: bool) -> Trace:
    """`anchor` decodes; in B (`is_shared`) `guest` joins step 1, whose kernels then differ, and step 3 flips."""
    run = TraceBuilder(layers=2, settings={"max_active": 2 if is_shared else 1, "policy": "threshold:2"})
    run.request("anchor", (5, 6, 7), max_tokens=4)
    run.request("guest", (8, 9), max_tokens=1)
    run.step(segment("anchor", SegmentKind.PREFILL, 0, (5, 6, 7), chosen=(10,)), path="gemm")
    anchor = segment("anchor", SegmentKind.DECODE, 3, (10,), chosen=(11,))
    guest = segment("guest", SegmentKind.PREFILL, 0, (8, 9), chosen=(20,))
    if is_shared:
        run.step(anchor, guest, path="gemm", lifecycle=[LifecycleEvent("admitted", "guest", 0, "now")])
        run.finish("guest")
        for layer, position in ((0, 3), (1, 3), (1, 4)):
            run.content[("anchor", position, layer)] = 900 + position
    else:
        run.step(anchor)
    run.step(segment("anchor", SegmentKind.DECODE, 4, (11,), chosen=(12,)))
    run.runner_up[("anchor", 6)] = (14 if not is_shared else 13, 1e-3)
    run.step(segment("anchor", SegmentKind.DECODE, 5, (12,), chosen=(14 if is_shared else 13,)))
    run.finish("anchor")
    if not is_shared:
        run.step(guest, path="gemm")
        run.finish("guest")
    return open_trace(run.write(path))


def write_hostile(path: Path, last_token: int) -> Trace:
    """A run whose ids, prompt, output, settings and event details try to break out of a page."""
    run = TextBuilder(settings={"policy": "</script><i>", "note": HOSTILE_TEXTS[0]}, environment={"device": "<svg>"})
    smile = "🙂".encode()
    run.texts = (*(text.encode() for text in HOSTILE_TEXTS), smile[:2], smile[2:], b"\xff\xfe", b"plain")
    prompt = tuple(range(len(run.texts)))
    run.request(HOSTILE_ID, prompt, max_tokens=4)
    run.step(
        segment(HOSTILE_ID, SegmentKind.PREFILL, 0, prompt, chosen=(0,)),
        lifecycle=[LifecycleEvent("<u>admitted</u>", HOSTILE_ID, 0, "</script>")],
        path="</script><b>path",
    )
    run.step(segment(HOSTILE_ID, SegmentKind.DECODE, len(prompt), (0,), chosen=(last_token,)))
    run.finish(HOSTILE_ID)
    return open_trace(run.write(path))
