"""docs/sdk.md says what is so: its example runs, every counter, call and setting is in it."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import driftline
from driftline.producers.counters import COUNTERS
from driftline.settings import SdkSettings

PAGE = (Path(__file__).parents[2] / "docs" / "sdk.md").read_text()


def test_every_counter_setting_and_call_is_documented() -> None:
    for name in (*COUNTERS, *SdkSettings.__struct_fields__):
        assert f"`{name}`" in PAGE, name
    for name, member in inspect.getmembers(driftline.Run, inspect.isfunction):
        if not name.startswith("_"):
            assert f"`run.{name}(" in PAGE, name
            assert member.__doc__, name
    assert "`driftline.init(" in PAGE


def test_the_example_runs_without_a_broker(tmp_path: Path) -> None:
    example = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert example
    env = os.environ | {"DRIFTLINE_BOOTSTRAP": "127.0.0.1:1", "DRIFTLINE_SDK__EXIT_WAIT": "300ms"}
    done = subprocess.run(
        [sys.executable, "-c", example[1]], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "not delivered" in done.stderr
