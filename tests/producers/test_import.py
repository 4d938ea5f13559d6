"""Importing driftline costs a trainer little and clashes with none of its modules."""

from __future__ import annotations

import doctest
import importlib
import json
import subprocess
import sys

import pytest

HEAVY = ["torch", "faust", "duckdb", "deltalake", "kafka", "pyarrow", "numpy", "msgspec", "typer"]
BARE = ["producers", "streams", "evaluator", "storage"]


def modules_after(code: str) -> set[str]:
    program = f"{code}\nimport sys, json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_import_driftline_loads_nothing_heavy() -> None:
    assert not modules_after("import driftline; dir(driftline)") & {*HEAVY, *BARE}


def test_a_run_loads_neither_torch_nor_the_other_parts() -> None:
    code = (
        "import driftline\n"
        "from driftline.settings import Settings\n"
        "from driftline.producers.transport import MemoryTransport\n"
        "with driftline.init('x', settings=Settings(), transport=MemoryTransport()) as run:\n"
        "    run.log({'a': 1.0})"
    )
    loaded = modules_after(code)
    assert not loaded & {"torch", "faust", "duckdb", "deltalake", *BARE}
    assert not {
        name
        for name in loaded
        if name.startswith(("driftline.streams", "driftline.storage", "driftline.evaluator"))
    }


def test_an_unknown_attribute_is_an_attribute_error() -> None:
    import driftline

    assert set(driftline.__all__) <= set(dir(driftline))
    with pytest.raises(AttributeError, match="nothing"):
        driftline.nothing  # noqa: B018


@pytest.mark.parametrize(
    "module",
    ["identity"]
    + [
        f"producers.{name}"
        for name in (
            "buffer", "checkpoint", "counters", "delivery", "exits", "framer", "launch", "naming", "node",
            "plain", "run", "transport", "values", "worker",
        )
    ],
)  # fmt: skip
def test_examples_in_docstrings_run(module: str) -> None:
    assert doctest.testmod(importlib.import_module(f"driftline.{module}")).failed == 0
