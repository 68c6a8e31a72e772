"""Feeds mutated traces to the reader: `python -m tests.divtrace.trace.fuzz_reader --files 10000`.

Every mutation has a seed. A file either reads to exactly what the original holds (the mutation hit bytes that mean
nothing), or it says that it ended early, or it ends in one TraceError, or `check_trace` finds the contradiction.
Anything else is a failure: another exception, a crash of the process, more than 5 seconds of processor time, more
memory than the limit, or other content without a word. Each worker process takes a batch of seeds and names a seed
before it tries it, so that a crash or a hang names its cause.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np

from divtrace.errors import DivtraceError
from divtrace.recorder.recorder import Recorder
from divtrace.trace.check import check_trace
from divtrace.trace.reader import Trace, open_trace
from divtrace.trace.schema import TABLES
from engine.observer import RunEnding
from tests.divtrace.trace.builders import example_run

SECONDS_LIMIT = 5.0
MEMORY_LIMIT_BYTES = 4 << 30
Content = dict[str, bytes]
Mutation = Callable[[Path, random.Random], None]


def content(trace: Trace) -> Content:
    """Everything that a consumer could read, as bytes."""
    found: Content = {"header": repr(trace.header).encode(), "ending": trace.ending().encode()}
    for table in TABLES:
        for column in table.columns:
            if trace.has_column(table.name, column.name):
                found[f"{table.name}/{column.name}"] = trace.column(table.name, column.name).tobytes()
    found["ids"] = repr(trace.request_ids()).encode()
    for request in range(trace.length("requests")):
        found[f"output {request}"] = trace.output(request).tobytes() + trace.prompt(request).tobytes()
    return found


def _datasets(file: h5py.File) -> list[str]:
    names: list[str] = []
    file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    return names


def _names(file: h5py.File) -> list[str]:
    return [*_datasets(file), *file]


def flip_bytes(path: Path, draw: random.Random) -> None:
    """A few bytes anywhere."""
    raw = bytearray(path.read_bytes())
    for _ in range(draw.choice([1, 1, 2, 8, 64])):
        raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
    path.write_bytes(raw)


def flip_metadata(path: Path, draw: random.Random) -> None:
    """A few bytes among those that are not zero, where the structure is dense."""
    raw = bytearray(path.read_bytes())
    places = [index for index, byte in enumerate(raw) if byte]
    for _ in range(draw.choice([1, 2, 4])):
        raw[draw.choice(places)] = draw.randrange(256)
    path.write_bytes(raw)


def truncate(path: Path, draw: random.Random) -> None:
    """The end is missing."""
    raw = path.read_bytes()
    path.write_bytes(raw[: draw.randrange(len(raw))])


def swap_blocks(path: Path, draw: random.Random) -> None:
    """Two blocks change places, or one is wiped."""
    raw = bytearray(path.read_bytes())
    size = draw.choice([8, 64, 512, 4096])
    a, b = (draw.randrange(len(raw) - size) for _ in range(2))
    raw[a : a + size], raw[b : b + size] = (raw[b : b + size], raw[a : a + size]) if draw.random() < 0.5 else (
        bytes(size), raw[b : b + size],
    )  # fmt: skip
    path.write_bytes(raw)


def remove(path: Path, draw: random.Random) -> None:
    """A dataset or a table is gone."""
    with h5py.File(path, "r+") as file:
        del file[draw.choice(_names(file))]


def resize(path: Path, draw: random.Random) -> None:
    """A dataset claims other rows than it has."""
    with h5py.File(path, "r+") as file:
        dataset = file[draw.choice(_datasets(file))]
        rows = draw.choice([0, max(len(dataset) - 1, 0), len(dataset) + 1, 1 << 20, 1 << 40])
        if dataset.maxshape[0] is None:
            dataset.resize(rows, axis=0)


def retype(path: Path, draw: random.Random) -> None:
    """A dataset has another type or rank."""
    with h5py.File(path, "r+") as file:
        name = draw.choice(_datasets(file))
        dtype = draw.choice(["<u2", ">u4", "<i4", "<f4", "<f8", "S3", "<u8", "<u4"])
        shape = draw.choice([(), (3,), (3, 2), (2, 2, 2), file[name].shape])
        del file[name]
        file.create_dataset(name, shape, dtype)


def spoil_numbers(path: Path, draw: random.Random) -> None:
    """Some numbers are out of range, with sound checksums."""
    with h5py.File(path, "r+") as file:
        for _ in range(draw.choice([1, 1, 3])):
            dataset = file[draw.choice([name for name in _datasets(file) if file[name].size])]
            place = tuple(draw.randrange(extent) for extent in dataset.shape)
            bits = draw.getrandbits(8 * dataset.dtype.itemsize).to_bytes(dataset.dtype.itemsize, "little")
            dataset[place] = np.frombuffer(bits, dataset.dtype)[0]


def link(path: Path, draw: random.Random) -> None:
    """A name leads elsewhere, or in a circle."""
    with h5py.File(path, "r+") as file:
        name, other = draw.choice(_names(file)), draw.choice(_names(file))
        target = draw.choice([
            h5py.ExternalLink(str(path.parent / "secret.h5"), "/" + other),
            h5py.SoftLink("/" + other),
            h5py.SoftLink("/" + name),
            file[other],
            file,
        ])  # fmt: skip
        if target == file[name]:
            return
        del file[name]
        try:
            file[name] = target
        except (ValueError, OSError):
            return


MUTATIONS: tuple[Mutation, ...] = (
    *(flip_bytes, flip_metadata, spoil_numbers) * 2,
    *(truncate, swap_blocks, remove, resize, retype, link),
)


def originals(folder: Path) -> list[Path]:
    """A trace that ended well, one of a run that failed, one whose recording died, and one that died at its footer."""
    whole = example_run().write(folder / "whole.h5", flush_steps=1)
    recorder = Recorder(folder / "live.h5", top_k=4, flush_steps=1)
    example_run().replay(recorder, end=False)
    died = folder / "died.h5"
    died.write_bytes((folder / "live.h5").read_bytes())
    recorder.abandon()
    late = folder / "late.h5"
    with h5py.File(example_run().write(folder / "copy.h5", flush_steps=1), "r+", libver="latest") as file:
        file.swmr_mode = True
        late.write_bytes((folder / "copy.h5").read_bytes())
    failed = folder / "failed.h5"
    example_run().replay(Recorder(failed, top_k=4), RunEnding(failure="a request cannot be scheduled."))
    return [whole, died, late, failed]


def verdict(seed: int, sources: list[Path], expected: list[Content], folder: Path) -> str | None:
    """Why mutation `seed` fails, None when it is handled."""
    draw = random.Random(seed)
    number = draw.randrange(len(sources))
    mutated = folder / "mutated.h5"
    mutated.write_bytes(sources[number].read_bytes())
    mutation = draw.choice(MUTATIONS)
    try:
        mutation(mutated, draw)
    except (OSError, RuntimeError, KeyError, ValueError, TypeError):
        return None
    began = time.process_time()
    try:
        with open_trace(mutated) as trace:
            seen = content(trace)
            said = trace.ending().encode() != expected[number]["ending"] or bool(check_trace(trace))
    except DivtraceError as error:
        said, seen = len(str(error).splitlines()) == 1, {}
        if not said:
            return f"{mutation.__name__}: an error of more than one line"
    except Exception as error:
        return f"{mutation.__name__}: {type(error).__name__}: {error}"
    spent_s = time.process_time() - began
    if spent_s > SECONDS_LIMIT:
        return f"{mutation.__name__}: took {spent_s:.1f} s"
    if not said and seen != expected[number] and mutation is not spoil_numbers:
        names = [name for name in seen if seen[name] != expected[number].get(name)]
        return f"{mutation.__name__}: other content without a word: {', '.join(names)}"
    return None


def try_seeds(seeds: range) -> Iterator[str]:
    """Lines `try SEED` before each mutation, `fail SEED REASON` after a bad one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sources = originals(folder)
        expected = []
        for source in sources:
            with open_trace(source) as trace:
                expected.append(content(trace))
        for seed in seeds:
            yield f"try {seed}"
            reason = verdict(seed, sources, expected, folder)
            if reason is not None:
                yield f"fail {seed} {reason}"


def run_batch(seeds: range) -> list[str]:
    """Try seeds in a process of their own; the failures, crashes and hangs included."""
    command = [sys.executable, "-m", "tests.divtrace.trace.fuzz_reader", "--worker", str(seeds.start), str(seeds.stop)]
    limit_s = 30 + len(seeds)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired as expired:
        lines = (expired.stdout or b"").decode().splitlines()
        return [f"{lines[-1] if lines else seeds}: hangs"]
    lines = done.stdout.splitlines()
    failures = [line for line in lines if line.startswith("fail")]
    if done.returncode:
        failures.append(f"{lines[-1] if lines else seeds}: exit {done.returncode} {done.stderr.strip()[-300:]}")
    return failures


def main() -> None:
    """Run workers over all seeds and print the failures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--worker", type=int, nargs=2)
    options = parser.parse_args()
    if options.worker:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
        for line in try_seeds(range(*options.worker)):
            print(line, flush=True)
        return
    failures = []
    for first in range(options.first, options.first + options.files, 500):
        failures += run_batch(range(first, min(first + 500, options.first + options.files)))
        print(f"{first + 500 - options.first} files, {len(failures)} failures", flush=True)
    print("\n".join(failures))
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
