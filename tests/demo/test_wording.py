"""What the demonstration tells people to type works as it is typed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from driftline.demo.wording import command


def test_the_command_is_the_one_of_this_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tmp_path / ".venv" / "bin" / "driftline"
    made.parent.mkdir(parents=True)
    made.write_text("#!/bin/sh\n")
    made.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(made.with_name("python")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    assert command() == ".venv/bin/driftline"
    assert command(absolute=True) == str(made)
    monkeypatch.setenv("PATH", str(made.parent))
    assert command() == "driftline"
