"""Commands that can be typed as they are printed: the traces by their paths, and both runs recorded once more."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

from divtrace.trace.reader import Trace

FOLDER = "same"


@dataclass(frozen=True, slots=True)
class Retry:
    """`traces`: both paths, quoted for a shell. `record`: both runs once more with row-independent kernels, into
    `FOLDER`; `diff`: the comparison of what that wrote. Empty where the traces do not say it.
    """

    traces: str = ""
    record: str = ""
    diff: str = ""


def retry_commands(a: Trace, b: Trace) -> Retry:
    """What these two traces allow: they must lie in files, and hold one workload that has both runs as arms."""
    paths = [a.path, b.path]
    if not all(path.isprintable() and "`" not in path and Path(path).is_file() for path in paths):
        return Retry()
    traces = shlex.join(paths)
    workload, names = a.header.workload, [Path(path).stem for path in paths]
    arms = workload.get("arms") if workload is not None and workload == b.header.workload else None
    if not isinstance(arms, dict) or len({*names} & {*arms}) != 2:
        return Retry(traces)
    # A trace holds its workload and not the name of the file that it came from.
    code = (
        f"import divtrace as d; d.record(d.open_trace({json.dumps(a.path)}).header.workload, {json.dumps(FOLDER)}, "
        "deterministic=True)"
    )
    written = shlex.join(f"{FOLDER}/{name}.h5" for name in names)
    return Retry(traces, f"python -c {shlex.quote(code)}", f"divtrace diff {written}")
