"""A process that records a long synthetic run, to be killed, starved of disk or interrupted by a test.

`python -m tests.divtrace.trace.recording_process TRACE FLUSH_STEPS STEPS` prints `flushed N` after each flush and
`done` at the end; an error ends it with one line on stderr and exit code 2, as a command would. With BREAK_AT set, the
disk breaks at that step: from then on HDF5 cannot write to the file.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from divtrace.errors import DivtraceError
from divtrace.recorder.recorder import Recorder
from engine.batch import SegmentKind
from engine.observer import RunEnding, StepEvent
from tests.divtrace.trace.builders import TraceBuilder, segment


class BreakingRecorder(Recorder):
    """A recorder whose disk breaks: the descriptor that HDF5 writes through becomes one that cannot write."""

    break_at = -1

    def step_finished(self, event: StepEvent) -> None:
        """Record a step, on a disk that may be broken."""
        if event.batch.step == self.break_at and self._writer is not None:
            os.dup2(os.open(self.path, os.O_RDONLY), self._writer._file.id.get_vfd_handle())
        super().step_finished(event)


def long_run(steps: int) -> TraceBuilder:
    """One request that prefills in one step and decodes in the others."""
    run = TraceBuilder(layers=4)
    run.request("long", (1, 2, 3), max_tokens=steps)
    if steps:
        run.step(segment("long", SegmentKind.PREFILL, 0, (1, 2, 3), chosen=(4,)))
    for step in range(1, steps):
        run.step(segment("long", SegmentKind.DECODE, step + 2, (4 + (step - 1) % 7,), chosen=(4 + step % 7,)))
    return run


def record(path: Path, flush_steps: int, steps: int) -> None:
    """Record until the end, an error or Ctrl-C."""
    run = long_run(steps)
    recorder = BreakingRecorder(path, flush_steps=flush_steps, flush_seconds=1e9)
    recorder.break_at = int(os.environ.get("BREAK_AT", "-1"))
    events = run.events()
    recorder.run_started(run.info())
    recorder.request_submitted(run.submitted()[0], 0)
    print("started", flush=True)
    try:
        for number, event in enumerate(events, start=1):
            recorder.step_finished(event)
            if number % flush_steps == 0:
                print(f"flushed {number}", flush=True)
        recorder.run_finished(RunEnding())
        print("done", flush=True)
    except KeyboardInterrupt:
        recorder.run_finished(RunEnding(interrupted=True))


if __name__ == "__main__":
    # A parent that runs in the background hands down an ignored SIGINT, and Python then leaves it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        record(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    except DivtraceError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
