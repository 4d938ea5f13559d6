"""What a simulation has stored, under every fault that has a name, is replayed from the tables on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulation.world import World

from driftline.replay.proof import Proof, prove
from driftline.storage.lake import Lake
from driftline.storage.memory_lake import MemoryRoot
from driftline.storage.recorded.compare import Stored
from driftline.storage.recorded.source import TableLog
from driftline.storage.tables import TABLE_NAMES


def on_disk(tables: MemoryRoot, root: Path) -> Path:
    """The same rows in tables of files."""
    lake = Lake(root)
    for name in TABLE_NAMES:
        rows = tables.rows(name)
        if rows.num_rows:
            lake.commit(name, rows, {}, {"simulated": 1})
    return root


def replayed(seed: int, root: Path) -> tuple[World, Proof]:
    world = World(seed)
    world.run()
    on_disk(world.tables, root)
    return world, prove(TableLog(root), Stored(root))


@pytest.mark.parametrize("seed", [1])
def test_all_that_was_stored_comes_out_again_or_it_is_said_what_is_missing(seed: int, tmp_path: Path) -> None:
    """Kills, zombies, cut logs, topics made again: what the stream workers said is what the log gives."""
    world, proof = replayed(seed, tmp_path / "data")
    assert sum(one.stored.rows for one in proof.compared) > 100
    assert proof.identical or proof.notes, proof.differences
    if not world.lost and not world.sink_gaps:
        assert proof.identical, proof.differences
    assert proof.beyond == 0
