"""The command line: help that a person can follow, exit codes, one line per error."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from driftline.cli import outcome
from driftline.cli.app import app
from driftline.cli.options import with_options
from driftline.errors import BadData, SettingsError, Unavailable

COMMANDS = [
    "streams",
    "scheduler",
    "evaluator",
    "sink",
    "broker",
    "watch",
    "sql",
    "demo",
    "version",
    "config",
    "spool",
    "curve",
    "compare",
    "trend",
    "correlate",
    "drivers",
    "ranks",
    "steps",
    "goodput",
    "utilisation",
    "scaling",
    "lineage",
    "evals",
    "cost",
    "report",
]
ROLES = {
    "streams": ("driftline.streams.worker", "run_streams"),
    "scheduler": ("driftline.streams.worker", "run_scheduler"),
    "evaluator": ("driftline.evaluator.service", "run_evaluator"),
    "sink": ("driftline.storage.sink", "run_sink"),
}
runner = CliRunner()


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("DRIFTLINE_"):
            monkeypatch.delenv(name)
    monkeypatch.setattr("driftline.cli.app.set_up_logging", lambda level, role: None)


def driftline(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DRIFTLINE_")}
    return subprocess.run(
        [sys.executable, "-m", "driftline.cli", *arguments],
        capture_output=True,
        text=True,
        env={**clean, **env},
        timeout=300,
        check=False,
    )


def test_help_names_every_command() -> None:
    result = runner.invoke(app, ["--help"])
    assert result.exit_code == 0
    for command in COMMANDS:
        assert re.search(rf"\b{command}\b", result.output)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_for_it_and_each_option(command: str) -> None:
    assert runner.invoke(app, [command, "--help"]).exit_code == 0
    tree = typer.main.get_command(app)
    for each in [tree.commands[command], *getattr(tree.commands[command], "commands", {}).values()]:  # type: ignore[attr-defined]
        assert each.help
        for parameter in each.params:
            assert getattr(parameter, "help", None), parameter.name


def test_help_loads_nothing_that_commands_need() -> None:
    code = (
        "import sys, typer.testing; from driftline.cli.app import app; "
        "typer.testing.CliRunner().invoke(app, ['--help']); "
        "heavy = {'kafka', 'aiokafka', 'faust', 'torch', 'duckdb', 'deltalake', 'pyarrow', 'numpy', "
        "'msgspec', 'yaml', 'asyncio', 'pydantic', 'matplotlib', 'importlib.metadata'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.strip() == "[]"


def test_options_are_made_of_the_command_that_is_used_only() -> None:
    """To make those of all takes as long as to import typer."""
    tree: Any = typer.main.get_command(app)
    groups = [tree.commands[name] for name in ("config", "spool", "storage")]
    commands = [c for group in (tree, *groups) for c in group.commands.values() if c not in groups]
    assert len(commands) > 30
    with pytest.raises(SystemExit):
        tree(["sql", "--help"])
    assert [command.name for command in commands if "whole" in vars(command)] == ["sql"]


@pytest.mark.parametrize("role", ROLES)
def test_a_role_runs_its_part_with_the_settings_and_ends_with_its_exit_code(
    role: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "f.yaml").write_text("kafka: {bootstrap: 'a:1', prefix: p., partitions: 3}")
    seen = []

    def entry(module: str, attribute: str):  # type: ignore[no-untyped-def]
        assert (module, attribute) == ROLES[role]
        return lambda settings: seen.append(settings) or 7

    monkeypatch.setattr("driftline.cli.app.entry", entry)
    result = runner.invoke(app, [role, "--config", "f.yaml", "--bootstrap", "b:2"])
    assert result.exit_code == 7
    assert (seen[0].kafka.bootstrap, seen[0].kafka.prefix, seen[0].kafka.partitions) == ("b:2", "p.", 3)


def test_what_is_not_in_effect_yet_is_said_once_at_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "driftline.yaml").write_text("evaluation: {adaptive: true, budget: 15%}")
    monkeypatch.setattr("driftline.cli.app.entry", lambda module, attribute: lambda settings: 0)
    lines = runner.invoke(app, ["streams"]).stderr.splitlines()
    assert [line.split(" ")[1] for line in lines] == ["evaluation.adaptive", "evaluation.budget"]


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (SettingsError("kafka.x", 5, "write 6"), 2, "kafka.x: 5 is not usable: write 6"),
        (Unavailable("no broker"), 1, "no broker"),
        (BadData("row 5 is broken"), 1, "row 5 is broken"),
        (ModuleNotFoundError("No module named 'faust'", name="faust"), 2, "pip install 'driftline[streams]'"),
        (
            ModuleNotFoundError("No module named 'duckdb'", name="duckdb"),
            2,
            "pip install 'driftline[storage]'",
        ),
        (
            ModuleNotFoundError("No module named 'torch'", name="torch.nn"),
            2,
            "pip install 'driftline[evaluator]'",
        ),
        (ModuleNotFoundError("No module named 'x'", name="x"), 1, "unexpected ModuleNotFoundError"),
        (ZeroDivisionError("division\nby zero"), 1, "unexpected ZeroDivisionError: division by zero"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    error: BaseException, code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> int:
        raise error

    assert outcome._code(command, name="x", debug=False) == code
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == (1 if says else 0)
    assert "Traceback" not in err


def test_the_extras_are_those_of_the_package() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    for module, extra in outcome.EXTRAS.items():
        assert re.search(rf"^{extra} = ", text, re.MULTILINE), module


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["nonsense"], 2, "No such command"),
        (["sink", "--bootstrap", "nonsense"], 2, "host:port"),
        (["sink", "--config", "nope.yaml"], 2, "no such file"),
        (["streams", "--log-level", "loud"], 2, "not one of"),
        (["sql"], 2, "Missing argument"),
        (["sql", "select 1", "--root", "nope"], 1, "nope"),
        (["sql", " "], 1, "empty"),
        (["watch", "--since", "yesterday"], 2, "--since"),
        (["broker", "--port", "99999"], 2, "65535"),
        (["config", "check", "nope.yaml"], 2, "no such file"),
        ([], 2, "Usage"),
    ],
)
def test_wrong_usage(arguments: list[str], code: int, says: str) -> None:
    result = runner.invoke(app, arguments)
    assert result.exit_code == code
    assert says in result.stderr + result.stdout
    assert "Traceback" not in result.stderr


def test_a_wrong_environment_variable_stops_a_role_with_code_2() -> None:
    done = driftline("sink", DRIFTLINE_STORAGE__RETENTION="7")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "DRIFTLINE_STORAGE__RETENTION: '7' is not usable" in done.stderr


def test_options_win_over_both_names_of_a_key() -> None:
    env = {"DRIFTLINE_KAFKA__BOOTSTRAP": "a:1", "DRIFTLINE_BOOTSTRAP": "b:1", "DRIFTLINE_STORAGE__ROOT": "r"}
    assert with_options(env, bootstrap="c:1", prefix=None, root="s") == {
        "DRIFTLINE_BOOTSTRAP": "c:1",
        "DRIFTLINE_ROOT": "s",
    }


def test_config_show_prints_a_file_that_can_be_used(tmp_path: Path) -> None:
    shown = runner.invoke(app, ["config", "show"], env={"DRIFTLINE_SDK__FLUSH": "1s"}).output
    (tmp_path / "again.yaml").write_text(shown)
    checked = runner.invoke(app, ["config", "check", "again.yaml"])
    assert (checked.exit_code, checked.output) == (0, "again.yaml: fine\n")
    assert "flush: 1s" in shown


def test_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", runner.invoke(app, ["version"]).output)


@pytest.mark.parametrize(
    ("command", "extra"),
    [("streams", "streams"), ("scheduler", "streams"), ("sink", "storage"), ("demo", "all")],
)
def test_a_role_without_its_extra_names_it_in_one_line(command: str, extra: str, tmp_path: Path) -> None:
    """Exit code 2, no trace: a supervisor should not start it again."""
    program = """
import importlib.abc, sys
class Base(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ("faust", "mode", "aiokafka", "deltalake", "duckdb", "torch"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Base())
from driftline.cli import main
main()
"""
    ended = subprocess.run(
        [sys.executable, "-c", program, command], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert f"pip install 'driftline[{extra}]'" in ended.stderr
