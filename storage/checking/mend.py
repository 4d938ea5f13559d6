"""``driftline storage repair``: mends what :mod:`.checking.check` finds, and says what that costs.

    a torn end of a table's log       set aside (".torn"); the sink stores its rows again
    a file that is missing or broken  taken out of the table, and kept in the quarantine
    a whole one that hides NaN        written anew, without statistics on floats
    files beside the tables           moved to the quarantine
    rows missing or there twice       with ``oldest`` (what the topics still have): all rows of the table from
                                      the first of them on are deleted and then its position goes back to
                                      before it, while nobody else writes: the sink stores them again, once.
                                      What the topic no longer has is counted in ``gaps`` and stays lost.

Nothing of the quarantine is ever deleted. Safe beside a running sink: it notices that its table was changed
and begins again from the position that it finds. Killed in the middle, a repair is finished by the next one:
rows that were deleted before the position moved are missing rows, which it finds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import pyarrow as pa

from driftline.storage.checking import remote as objects
from driftline.storage.checking.check import Watcher, checked
from driftline.storage.checking.files import TableFiles
from driftline.storage.checking.findings import Bad, Report, in_words, without
from driftline.storage.checking.strays import QUARANTINE, set_aside
from driftline.storage.core import Spot
from driftline.storage.lakes import AnyLake, open_lake
from driftline.storage.object_lake import ObjectLake
from driftline.storage.objects import address, is_remote
from driftline.storage.root import local
from driftline.storage.table_log import set_aside_torn_end
from driftline.storage.tables import FEEDS, TABLES, TableName

Oldest = Mapping[tuple[str, int], int]
"""(topic UUID, partition) of each telemetry partition -> the first offset that the topic still has."""


class Step(NamedTuple):
    """One thing that is done, or would be."""

    table: TableName
    does: str


def plan(root: str | os.PathLike[str], *, watcher: Watcher | None = None) -> tuple[Report, list[Step]]:
    """What :func:`repair` would do, without ``oldest``. Changes nothing. Raises BadData."""
    report, tables = checked(root, watcher=watcher)
    return report, [step for step, _ in _of_files(tables, remote=is_remote(root))]


def repair(
    root: str | os.PathLike[str],
    *,
    oldest: Oldest | None = None,
    now_us: int | None = None,
    watcher: Watcher | None = None,
) -> tuple[Report, list[Step]]:
    """Mends; returns how the tables are afterwards, and what was done. ``now_us`` goes into ``gaps``.

    Raises:
        BadData: there are no tables, or one cannot be opened even so.
        Unavailable: somebody writes all the time, or the disk refuses.
    """
    path = address(root) if is_remote(root) else local(root)
    done: list[Step] = []
    if isinstance(path, Path):
        done += _of_logs(path)
    report, tables = checked(path, watcher=watcher)
    files = list(_of_files(tables, remote=is_remote(root)))
    lake = open_lake(path) if files or report.bad else None
    for step, found in files:
        assert lake is not None
        done += [step] if _do(lake, found, step) else []
    if report.bad and oldest is None:
        return (checked(path, quick=True)[0] if done else report), done
    report = checked(path, quick=True)[0]
    for bad in report.bad if lake is not None else ():
        done += _restore(lake, bad, oldest or {}, now_us)  # type: ignore[arg-type]
    return checked(path, quick=True)[0], done


# --- files -----------------------------------------------------------------------------------------------


def _of_logs(root: Path) -> Iterator[Step]:
    for name in TABLES:
        for torn in set_aside_torn_end(root / name):
            lost = "nothing is lost" if ".checkpoint." in torn.name else "the sink stores its rows again"
            yield Step(name, f"set aside {torn.name}: {lost}")


class _FileStep(NamedTuple):
    step: Step
    path: Path
    kind: Literal["broken", "counted", "stray"]
    """The first two are part of the table."""


def _of_files(tables: Mapping[TableName, TableFiles], *, remote: bool) -> Iterator[tuple[Step, _FileStep]]:
    """All that there is to do; ``counted`` is empty of tables in an object store."""
    for name, table in tables.items():
        for file in table.broken:
            step = Step(
                name, f"take {Path(file).name} out of the table, with its rows, and keep it in {QUARANTINE}"
            )
            yield step, _FileStep(step, Path(file), "broken")
        for file in table.counted:
            step = Step(name, f"write {Path(file).name} anew, without statistics on float columns")
            yield step, _FileStep(step, Path(file), "counted")
        for stray in table.strays:
            if objects.movable(stray) if remote else stray.movable or stray.kind == "ours":
                step = Step(name, f"move {stray.path.name} ({stray.kind}) to {QUARANTINE}/{name}")
                yield step, _FileStep(step, stray.path, "stray")


def _do(lake: AnyLake, found: _FileStep, step: Step) -> bool:
    if isinstance(lake, ObjectLake):
        moved = objects.set_aside(lake.root, step.table, found.path.name)
    elif found.kind == "counted":
        lake.write_anew(step.table, [found.path.name])
        return True
    else:
        moved = set_aside(lake.root, step.table, found.path) is not None
    if found.kind == "broken":
        lake.forget_missing(step.table)
        return True
    return moved


# --- rows ------------------------------------------------------------------------------------------------


def _restore(lake: AnyLake, bad: Bad, oldest: Oldest, now_us: int | None) -> Iterator[Step]:
    """Has the rows stored again that the topic still has; counts the others."""
    if bad.table not in FEEDS["telemetry"]:
        return
    first = oldest.get((bad.topic_uuid, bad.partition))
    gone = [
        (a, min(b, first - 1) if first is not None else b)
        for a, b in bad.ranges
        if first is None or a < first
    ]
    if gone and bad.kind == "missing":
        _count_lost(lake, bad, gone, now_us)
        yield Step(bad.table, f"count as lost in gaps: offsets {in_words(gone)} of partition {bad.partition}")
    if first is None:
        return
    left = [part for pair in bad.ranges for part in without(*pair, [(0, first - 1)])]
    if not left or (gone and bad.kind == "doubled"):
        return
    spot = Spot("telemetry", bad.topic_uuid, bad.partition)
    lake.rewind(bad.table, spot.app, spot.fence, left[0][0], _rows_from(spot, left[0][0]))
    yield Step(
        bad.table,
        f"back to offset {left[0][0]} of partition {bad.partition}: the sink reads from there and stores the "
        "rows again; until it has, queries lack them",
    )


def _rows_from(spot: Spot, first: int) -> str:
    uuid = spot.uuid.replace("'", "''")
    return f'"topic_uuid" = \'{uuid}\' AND "partition" = {spot.partition} AND "offset" >= {first}'


def _count_lost(lake: AnyLake, bad: Bad, gone: Sequence[tuple[int, int]], now_us: int | None) -> None:
    rows = [
        {
            "topic": "telemetry",
            "topic_uuid": bad.topic_uuid,
            "partition": bad.partition,
            "first": first,
            "last": last,
            "tables": bad.table,
            "found": now_us,
        }
        for first, last in gone
    ]
    lake.commit("gaps", pa.Table.from_pylist(rows, TABLES["gaps"].schema), {}, {})
