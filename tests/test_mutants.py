"""The list of mutants fits the sources, and the program that runs them tells a bug that nobody notices."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from tests.mutants import mutants

REPOSITORY = Path(__file__).parents[1]
ALL = mutants.read_list()


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_a_mutant_still_applies_and_changes_the_code(mutant: mutants.Mutant) -> None:
    """The list does not rot: each bug can be put into today's sources, and its tests are there."""
    changed = mutants.mutated(mutant, REPOSITORY)
    source = (REPOSITORY / mutant.file).read_text()
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source)), "only a comment"
    assert mutant.form in ("short", "long")
    paths = [each.partition("::")[0] for each in mutant.tests if each.startswith("tests")]
    assert paths, "it names the tests that notice it"
    assert [path for path in paths if not (REPOSITORY / path).exists()] == []


def test_mutants_have_names_of_their_own_and_lie_in_all_rooms() -> None:
    names = [mutant.name for mutant in ALL]
    assert len(set(names)) == len(names) >= 50
    rooms = {"producers", "contract", "streams", "evaluator", "storage", "replay", "importing", "analysis"}
    assert rooms | {"cli", "demo"} <= {mutant.room for mutant in ALL}


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A repository with one module, one test and three mutants."""
    root = tmp_path / "toy"
    (root / "src").mkdir(parents=True)
    (root / "tests").mkdir()
    (root / "src" / "toy_of_mutants.py").write_text("def least(a, b):\n    return a if a < b else b\n")
    (root / "tests" / "test_toy.py").write_text(
        "import subprocess, sys\n"
        "from toy_of_mutants import least\n"
        "def test_least():\n    assert least(1, 2) == 1\n"
        "def test_in_a_child():\n"
        "    code = 'import toy_of_mutants; print(toy_of_mutants.__file__, toy_of_mutants.least(2, 2))'\n"
        "    said = subprocess.check_output([sys.executable, '-c', code], text=True)\n"
        "    assert 'driftline-mutant-' in said and said.endswith(' 2\\n')\n"
    )
    return root


def _list(root: Path, **changes: tuple[str, str]) -> Path:
    entries = [
        f"[[mutant]]\nname = {name!r}\nfile = 'src/toy_of_mutants.py'\nold = {old!r}\nnew = {new!r}\n"
        "harm = 'a wrong number'\ntests = ['tests/test_toy.py']\n"
        for name, (old, new) in changes.items()
    ]
    path = root.parent / "toy.toml"
    path.write_text("\n".join(entries))
    return path


def test_a_bug_that_no_test_notices_is_reported_as_missed(
    toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A blind spot cannot pass for a bug that was caught, nor can a bug that was never there."""
    found = _list(
        toy, seen=("a < b", "a > b"), equivalent=("a < b", "a <= b"), unapplied=("return c", "return a")
    )
    out = tmp_path / "out.json"
    code = mutants.main(["--root", str(toy), "--list", str(found), "--json", str(out), "--jobs", "2"])
    states = {row["name"]: row["state"] for row in json.loads(out.read_text())}
    assert states == {"seen": "caught", "equivalent": "missed", "unapplied": "not applied"}
    assert code == 1
    said = capsys.readouterr().out
    assert "missed: equivalent: a wrong number" in said
    assert "a < b" in (toy / "src" / "toy_of_mutants.py").read_text(), "the sources stay as they are"


def test_tests_that_fail_anyway_notice_nothing(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What fails without the bug proves nothing, and is not called caught."""
    (toy / "tests" / "test_toy.py").write_text("def test_broken():\n    assert False\n")
    found = _list(toy, seen=("a < b", "a > b"))
    assert mutants.main(["--root", str(toy), "--list", str(found)]) == 1
    assert "fails without the bug" in capsys.readouterr().out
    assert mutants.main(["--root", str(toy), "--list", str(found), "--only", "nobody"]) == 2
