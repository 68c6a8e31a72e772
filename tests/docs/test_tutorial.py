"""The tutorial: its files are written, its commands run, and what they print is what the page shows."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import pytest

from tests.docs.console import (
    CONSOLE_BLOCK,
    FILE_BLOCK,
    ROOT,
    Command,
    comparable,
    differences,
    parse_page,
    refreshed,
    run_page,
)

TUTORIAL = ROOT / "docs" / "tutorial.md"
REFRESH = "refresh the page with: python -m tests.docs.console docs/tutorial.md --write"
CALLS = ("divtrace ", "pip ", "--")


def has_avx2() -> bool:
    cpu_info = Path("/proc/cpuinfo")
    return platform.machine() == "x86_64" and cpu_info.exists() and " avx2 " in cpu_info.read_text()


@pytest.mark.model
@pytest.mark.skipif(not has_avx2(), reason="the digits on the page are those of x86-64 Linux with AVX2")
def test_every_command_of_the_tutorial_prints_what_the_page_shows(tmp_path: Path) -> None:
    page = parse_page(TUTORIAL.read_text(encoding="utf-8"))
    found = differences(page, run_page(page, tmp_path))
    assert not found, f"{REFRESH}\n{found}"


def test_what_the_text_quotes_stands_in_a_block_of_the_page() -> None:
    text = TUTORIAL.read_text(encoding="utf-8")
    blocks = " ".join(match.group(0) for match in [*FILE_BLOCK.finditer(text), *CONSOLE_BLOCK.finditer(text)])
    prose = CONSOLE_BLOCK.sub("", FILE_BLOCK.sub("", text))
    quoted = [span for span in re.findall(r"`([^`\n]+)`", prose) if not span.startswith(CALLS)]
    shown = " ".join(blocks.split())
    assert len(quoted) > 10
    assert [span for span in quoted if " ".join(span.split()) not in shown] == []


PAGE = """Text.

```text title="words.txt"
one
two
```

```console
$ export PLACE=here

$ cat words.txt; echo $PLACE
one
two
here
```

```console
$ echo "took 3.10 s, wrote 12 kB"; false || echo after
took 1 ms, wrote 9 MB
after
```
"""


def test_a_page_that_shows_the_truth_has_no_differences(tmp_path: Path) -> None:
    page = parse_page(PAGE)
    assert page.files == {"words.txt": "one\ntwo\n"}
    assert page.commands[1] == Command("cat words.txt; echo $PLACE", "one\ntwo\nhere")
    assert differences(page, run_page(page, tmp_path)) == ""


@pytest.mark.parametrize(
    ("true", "false"), [("two\nhere", "three\nhere"), ("here\n```", "```"), ("\nafter\n", "\nbefore\n")]
)
def test_an_output_that_is_not_on_the_page_is_found_and_written(tmp_path: Path, true: str, false: str) -> None:
    changed = PAGE.replace(true, false)
    assert changed != PAGE
    page = parse_page(changed)
    printed = run_page(page, tmp_path)
    assert "printed" in differences(page, printed)
    assert comparable(refreshed(changed, page, printed)) == comparable(PAGE)


def test_output_before_the_first_command_is_refused() -> None:
    with pytest.raises(ValueError, match="begins with output"):
        parse_page("```console\nlost\n$ echo x\nx\n```\n")
