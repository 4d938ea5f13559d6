"""Readers beside a sink that appends, compacts and cleans up (cases S9 and S19): nobody locks anybody out, no
row is seen twice or missed, and what was seen once stays."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from driftline.storage import catalog
from driftline.storage.tables import TABLES

_READER = """
import json, subprocess, sys, time
import duckdb
from driftline.storage.open import open_catalog
from driftline.storage.sql import query
kind, root, reads = sys.argv[1], sys.argv[2], int(sys.argv[3])
sql = "SELECT count(*) AS n, count(DISTINCT step) AS steps, count(DISTINCT seq) AS frames FROM samples"
sql = sql.replace("seq", '"offset"')

def plain():
    for tries in (1, 0):
        try:
            with duckdb.connect(root + "/catalog.duckdb", read_only=True) as db:
                return db.execute(sql).fetchone()
        except duckdb.IOException as error:
            if not tries or "catalog.duckdb" in str(error):
                raise

def command():
    done = subprocess.run(
        [sys.executable, "-m", "driftline.cli", "sql", "--root", root, "--json", sql],
        capture_output=True, text=True, check=True,
    )
    return tuple(json.loads(done.stdout).values())

opened = open_catalog(root)
read = {
    "open": lambda: opened.rows(sql)[0],
    "sql": lambda: tuple(query(root, sql).to_pylist()[0].values()),
    "command": command,
    "plain": plain,
}[kind]
seen = []
while len(seen) < reads or seen[0] == seen[-1]:  # until the table grew, however slowly
    n, steps, frames = read()
    assert n == steps == 10 * frames, (n, steps, frames)
    assert not seen or n >= seen[-1], (n, seen[-1])
    seen.append(n)
"""


class Readers:
    """Processes of their own."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._started: list[subprocess.Popen[str]] = []

    def start(self, kind: str, reads: int) -> None:
        command = [sys.executable, "-c", _READER, kind, str(self._root), str(reads)]
        pipe = subprocess.PIPE
        self._started.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True))

    @property
    def busy(self) -> bool:
        return any(process.poll() is None for process in self._started)

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()

    def check(self) -> None:
        """All ended well, and saw the table grow."""
        for process in self._started:
            _, err = process.communicate(timeout=10)
            assert process.returncode == 0, err


@pytest.fixture
def readers(store: Any) -> Any:
    with contextlib.closing(Readers(store.root)) as made:
        yield made


def test_readers_of_every_kind_go_on_while_a_sink_appends_compacts_and_cleans_up(
    store: Any, make: Any, readers: Readers
) -> None:
    """Harder than life: replaced files are removed as soon as the catalog no longer has them, not after an
    hour."""

    def append(seq: int) -> None:
        store.put("telemetry", make.frame(seq, {"loss": [1.0] * 10}, step=seq * 10))

    def renew() -> None:
        assert catalog.write(store.root, lambda: {name: store.lake.files(name) for name in TABLES})

    append(0)
    renew()
    for kind, reads in (("open", 30), ("sql", 8), ("plain", 30), ("command", 2)):
        readers.start(kind, reads)
    seq = 1
    while readers.busy and seq < 5_000:
        append(seq)
        if seq % 6 == 0:
            store.lake.compact("samples", at_least=5)
            renew()
            store.lake.vacuum("samples", keep_hours=0)
        elif seq % 2 == 0:
            renew()
        seq += 1
    readers.check()
    assert len(list((store.root / "samples").glob("*.parquet"))) < seq / 2
