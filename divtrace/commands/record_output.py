"""What `divtrace record` prints while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from divtrace.api.record import RecordWatcher
from divtrace.commands.options import step_progress
from divtrace.recorder.targets import Replaced
from divtrace.recording import Arm, ArmResult, StepCallback
from engine.request import FinishReason


class PrintedRecording(RecordWatcher):
    """A bar while an arm runs, a line when it has ended."""

    def replacing(self, replaced: Replaced) -> None:
        """One line on standard error."""
        click.echo(str(replaced), err=True)

    @contextmanager
    def running(self, arm: Arm) -> Iterator[StepCallback | None]:
        """The bar."""
        with step_progress(f"arm {arm.name}") as advance:
            yield advance

    def finished(self, result: ArmResult) -> None:
        """The trace's path and what it holds; requests that were refused, or failed, on standard error."""
        tokens = sum(len(completion.tokens) for completion in result.completions.values())
        click.echo(f"{result.path}: {len(result.completions)} requests, {tokens} tokens, {result.steps} steps")
        for completion in result.completions.values():
            if completion.finish_reason in (FinishReason.REFUSED, FinishReason.ERROR):
                click.echo(f"  {completion.finish_reason.value}: {completion.detail}", err=True)
