"""docs/tutorial.md is run from its first to its last command, and its output is what the page shows.

``DRIFTLINE_WRITE_DOCS=1`` writes what came out into the page.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"
REAL = "<!-- real run -->"
LOG = Path("rl_curves") / "verl_ppo_qwen0.5b_gsm8k.jsonl"
BLOCK = re.compile(rf"(?P<real>{REAL}\n)?```console\n(?P<text>.*?)```\n", re.DOTALL)


class Command(NamedTuple):
    """One command of the page: what is typed, what is run, what is shown below it."""

    typed: str
    shell: str
    shown: str
    real: bool


def commands(page: str) -> list[Command]:
    found = []
    for block in BLOCK.finditer(page):
        for piece in re.split(r"^\$ ", block["text"], flags=re.MULTILINE)[1:]:
            lines = piece.split("\n")
            typed = 1
            while typed < len(lines) and lines[typed].startswith("> "):
                typed += 1
            shell = "\n".join([lines[0], *(line[2:] for line in lines[1:typed])])
            shown = "\n".join(lines[typed:])
            found.append(Command("\n".join(lines[:typed]), shell, shown, bool(block["real"])))
    return found


def plain(text: str) -> str:
    """Without what differs in spaces at the ends of lines."""
    return "\n".join(line.rstrip() for line in text.strip("\n").split("\n"))


def run(command: Command, folder: Path, log: Path | None) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("DRIFTLINE_")}
    environ |= {
        "PATH": f"{Path(sys.executable).parent}:{environ['PATH']}",
        "TZ": "Asia/Tehran",
        "LC_ALL": "C.UTF-8",
    }
    environ |= {"VERL_LOG": str(log)}
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command.shell],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"$ {command.typed}\n{done.stdout}{done.stderr}"
    return done.stdout.replace(str(log), log.name if log else "")


def outputs(folder: Path, log: Path | None) -> list[tuple[Command, str]]:
    return [
        (command, run(command, folder, log))
        for command in commands(PAGE.read_text())
        if log is not None or not command.real
    ]


def compared(found: list[tuple[Command, str]]) -> None:
    if os.environ.get("DRIFTLINE_WRITE_DOCS"):
        page = PAGE.read_text()
        for command, output in found:
            old, new = f"$ {command.typed}\n{command.shown}", f"$ {command.typed}\n{plain(output)}\n"
            page = page.replace(old, new if output.strip() else f"$ {command.typed}\n", 1)
        PAGE.write_text(page)
        return
    for command, output in found:
        assert plain(output) == plain(command.shown), f"$ {command.typed}"


def test_each_command_of_the_tutorial_gives_what_the_page_shows(tmp_path: Path) -> None:
    """The parts about the made-up run, and with the real log at hand those about it too."""
    default = PAGE.parents[2] / "shared" / "realdata"
    log = Path(os.environ.get("DRIFTLINE_REALDATA", default)).absolute() / LOG
    real = log.is_file()
    compared(outputs(tmp_path, log if real else None))
    if not real:
        pytest.skip(
            f"the part about the made-up run is fine; there is no {log} for the rest (DRIFTLINE_REALDATA)"
        )


def test_the_page_has_commands_of_both_kinds_and_no_other_blocks() -> None:
    page = PAGE.read_text()
    kinds = [command.real for command in commands(page)]
    assert kinds.count(True) >= 5
    assert kinds.count(False) >= 5
    assert page.count("```console") == len(BLOCK.findall(page)) == page.count("```") // 2
