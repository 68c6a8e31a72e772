"""`divtrace check`: is a trace sound?"""

from __future__ import annotations

from pathlib import Path

import click

from divtrace.commands.arguments import TRACE
from divtrace.commands.options import print_json


@click.command("check")
@click.argument("trace", type=TRACE)
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
def command(trace: Path | str, as_json: bool) -> int:
    """Check structure and invariants of TRACE; exit 0 when it is sound, 1 with what is wrong and where.

    \b
    Examples:
      divtrace check runs/batched.h5
      divtrace check runs/batched.h5 --json
      divtrace check downloaded.h5 && divtrace show downloaded.h5
    """
    from divtrace.render.text import visible
    from divtrace.trace.check import check_trace
    from divtrace.trace.reader import open_trace

    with open_trace(trace) as opened:
        findings = check_trace(opened)
        ending = opened.ending()
    if as_json:
        listed = [{"place": finding.place, "problem": finding.problem} for finding in findings]
        print_json({"schema": "divtrace.check/1", "ending": ending, "findings": listed})
    else:
        for finding in findings:
            click.echo(visible(str(finding)))
        click.echo(f"{trace}: {ending}; {len(findings) or 'no'} finding{'' if len(findings) == 1 else 's'}")
    return 1 if findings else 0
