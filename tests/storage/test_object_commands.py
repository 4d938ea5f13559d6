"""Every command on tables in an object store says what it says of the same tables in a local folder."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from driftline.cli.app import app
from driftline.storage.objects import files_below
from tests.support.object_store import SECRET, object_root


class Both(NamedTuple):
    """The same two runs, imported into a folder and into an object store."""

    folder: str
    address: str
    sources: list[Path]


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("both")
    sources = []
    for number in range(2):
        sources.append(folder / f"r{number}.jsonl")
        rows = [
            {
                "step": at,
                "time": 1_700_000_000 + at * 2,
                "loss": math.exp(-at / 20) + number / 10 + math.sin(at * 7 + number) / 30,
                "reward": at / 50 + math.cos(at * 5 + number) / 20 if at != 30 else math.nan,
            }
            for at in range(60)
        ]
        sources[-1].write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.MonkeyPatch.context() as patch, object_root(patch) as address:
        for root in (str(folder / "data"), address):
            told = run("import", *map(str, sources), "--root", root, "--time-column", "time")
            assert told.exit_code == 0, told.output
        yield Both(str(folder / "data"), address, sources)


@pytest.mark.parametrize(
    "words", [("curve", "r0", "loss"), ("lineage", "r0", "loss"), ("sql", "FROM runs ORDER BY run")]
)
def test_a_question_has_the_same_answer(both: Both, words: tuple[str, ...]) -> None:
    here, there = (run(*words, "--json", "--root", root) for root in (both.folder, both.address))
    assert (here.exit_code, here.output.replace(both.folder, both.address)) == (0, there.output)


@pytest.mark.parametrize("more", [(), ("--repair",)])
def test_a_replay_proves_the_same(both: Both, more: tuple[str, ...]) -> None:
    told = []
    for root in (both.folder, both.address):
        answer = run("replay", "r0", *more, "--json", "--root", root)
        assert answer.exit_code == 0, answer.output
        found = json.loads(answer.stdout)
        told.append({key: value for key, value in found.items() if not re.search("second|_per_s|times", key)})
    assert told[0] == told[1]
    if not more:
        assert told[1]["identical"] is True


def test_an_import_that_is_run_again_adds_nothing(both: Both) -> None:
    for dry in ((), ("--dry-run",)):
        told = run("import", str(both.sources[0]), "--root", both.address, "--time-column", "time", *dry)
        assert told.exit_code == 0, told.output
    assert "already there" in run("import", str(both.sources[0]), "--root", both.address).output
    fresh = run("import", str(both.sources[0]), "--root", f"{both.address}-none", "--dry-run")
    assert fresh.exit_code == 0
    assert run("sql", "FROM runs", "--root", f"{both.address}-none").exit_code == 1, "nothing was made"


def test_an_export_is_the_same_bytes(both: Both, tmp_path: Path) -> None:
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for file, root in zip(files, (both.folder, both.address), strict=True):
        told = run("export", str(file), "--root", root)
        assert told.exit_code == 0, told.output
    assert files[0].read_bytes() == files[1].read_bytes()
    to = both.address.rpartition("/")[0] + "/exports/c.csv"
    told = run("export", to, "--root", both.folder)
    assert told.exit_code == 0, told.output
    assert to in told.output
    assert files_below(to.removesuffix("/c.csv")).open_input_file("c.csv").read() == files[0].read_bytes()
    assert run("export", f"{both.address}/samples/c.csv", "--root", both.address).exit_code == 2
    assert run("export", "ftp://host/c.csv", "--root", both.address).exit_code == 2


def test_no_command_tells_the_secret_of_a_store_that_is_away(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_RETRIES", "0")
    for words in (
        ("replay",),
        ("import", str(both.sources[0])),
        ("import", str(both.sources[0]), "--dry-run"),
    ):
        told = run(*words, "--root", both.address)
        assert told.exit_code == 1, told.output
        assert len(told.output.splitlines()) == 1
        assert SECRET not in told.output
