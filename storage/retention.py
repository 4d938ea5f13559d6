"""What has expired: rows of ``samples``, ``log`` and ``eval_items`` older than ``storage.retention``.

A sample's age is its own time, a record's (``log``) the time at which the broker got it. An evaluated item
has no time: it is as old as the acceptance of its evaluation, and so is everything before it in its
partition, also what no accepted evaluation used; but nothing goes that lies behind an item that is younger.
All other tables are kept for ever.

``log`` also is where a restarted sink learns what it has seen (see :mod:`driftline.storage.resume`), so two
things of it stay: the newest stored row of each process, whatever its age, and everything beyond the position
that a sink would read again from. With the first the run also stays in ``runs``. Configurations stay too: a
replay of what is younger needs the one that held.

A host clock that runs ahead deletes nothing that is young: "now" is at most the newest time that a broker
gave a record (:func:`now`). So while nothing comes, nothing expires either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import duckdb

from driftline.storage.lakes import AnyLake
from driftline.storage.relations import source, text
from driftline.storage.store import App
from driftline.storage.tables import FEEDS, TableName

EXPIRING: tuple[TableName, ...] = ("samples", "log", "eval_items")
MAX_TERMS = 5_000
"""Of one predicate. delta-rs 1.6.6 takes 2 s for 20,000 and dies of 200,000 [measured]."""
_RANGE_TERMS = 20
"""What a range counts for beside the rows that it keeps."""


class Range(NamedTuple):
    """Offsets [first, last] of one partition, of which ``kept`` stay."""

    topic_uuid: str
    partition: int
    first: int
    last: int
    kept: Sequence[int] = ()


class Expired(NamedTuple):
    """Rows that go in one deletion, and the last offset of each partition that does (:meth:`App.expired`)."""

    predicate: str
    upto: Mapping[str, int]


def cutoff(retention_us: int | None, now_us: int | None) -> int | None:
    """What happened before this instant (microseconds since 1970) has expired; None: nothing ever does.

    >>> cutoff(10, 25), cutoff(None, 25), cutoff(30, 25)
    (15, None, None)
    """
    if retention_us is None or now_us is None or now_us <= retention_us:
        return None
    return now_us - retention_us


def now(lake: AnyLake, host_us: int) -> int | None:
    """The clock of retention, microseconds since 1970: the host's, but not beyond the newest record of
    ``log``; None without any. Raises duckdb.Error if a file is missing or broken."""
    with lake.connect() as db:
        query = f"SELECT epoch_us(max(received)) FROM {source('log', lake.files('log'))}"
        newest = db.execute(query).fetchall()[0][0]
    return None if newest is None else min(host_us, newest)


def expired(
    lake: AnyLake, name: TableName, cutoff_us: int, telemetry_uuid: str, partitions: int
) -> list[Expired]:
    """What to delete of one of the ``EXPIRING`` tables, to be done one by one; empty if nothing has expired.

    ``telemetry_uuid`` and ``partitions`` say which records a sink may read again. Raises duckdb.Error if a
    file of a table is missing or broken.
    """
    instant = _instant(cutoff_us)
    if name == "samples":
        return [Expired(f'"time" < {instant}', {})]
    with lake.connect() as db:
        if name == "log":
            ranges = _log_ranges(db, lake, instant, _levels(lake, telemetry_uuid, partitions))
            return [
                Expired(f'"received" < {instant} AND ({_any(found)})', _ends(found))
                for found in passes(ranges)
            ]
        return [Expired(_any(found), {}) for found in passes(_item_ranges(db, lake, instant))]


def _ends(ranges: Iterable[Range]) -> dict[str, int]:
    return {App.expired(one.topic_uuid, one.partition): one.last for one in ranges}


def passes(ranges: Iterable[Range], at_most: int = MAX_TERMS) -> list[list[Range]]:
    """The ranges in groups of at most ``at_most`` terms; a range that keeps too many rows is cut.

    >>> found = passes([Range("u", 0, 0, 9, [1, 4, 5]), Range("u", 1, 0, 5)], 22)
    >>> [[(part.partition, part.first, part.last, part.kept) for part in group] for group in found]
    [[(0, 0, 4, [1, 4])], [(0, 5, 9, [5])], [(1, 0, 5, ())]]
    """
    groups: list[list[Range]] = []
    room = 0
    for part in (part for whole in ranges for part in _cut(whole, at_most - _RANGE_TERMS)):
        terms = _RANGE_TERMS + len(part.kept)
        if terms > room:
            groups.append([])
            room = at_most
        groups[-1].append(part)
        room -= terms
    return groups


def _cut(whole: Range, most: int) -> Iterable[Range]:
    first, kept = whole.first, whole.kept
    while len(kept) > most:
        yield whole._replace(first=first, last=kept[most - 1], kept=kept[:most])
        first, kept = kept[most - 1] + 1, kept[most:]
    yield whole._replace(first=first, kept=kept)


def _any(ranges: Iterable[Range]) -> str:
    return " OR ".join(map(_sql, ranges))


def _sql(found: Range) -> str:
    kept = f' AND "offset" NOT IN ({", ".join(map(str, found.kept))})' if found.kept else ""
    return (
        f'("topic_uuid" = {text(found.topic_uuid)} AND "partition" = {found.partition}'
        f' AND "offset" >= {found.first} AND "offset" <= {found.last}{kept})'
    )


def _instant(time_us: int) -> str:
    """A literal that DuckDB and delta-rs read alike."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)
    return text(moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z")


def _levels(lake: AnyLake, uuid: str, partitions: int) -> str:
    """SQL values of the last offset of each telemetry partition that all its tables have."""
    rows = []
    for partition in range(partitions):
        level = min(lake.version(name, App.id(uuid, partition)) for name in FEEDS["telemetry"])
        rows.append(f"({text(uuid)}, {partition}, {level})")
    return ", ".join(rows)


def _log_ranges(db: duckdb.DuckDBPyConnection, lake: AnyLake, instant: str, levels: str) -> list[Range]:
    """The rows of ``log`` that may go, as few offsets as possible: after the first time those of an hour."""
    query = f"""
        WITH levels(topic_uuid, "partition", level) AS (VALUES {levels}),
        settled AS (
            SELECT topic_uuid, "partition", "offset", kind, run, process, seq, received, outcome
            FROM {source("log", lake.files("log"))} LEFT JOIN levels USING (topic_uuid, "partition")
            WHERE level IS NULL OR "offset" <= level),
        newest AS (
            SELECT topic_uuid, "partition", arg_max("offset", seq) AS "offset" FROM settled
            WHERE outcome = 'stored' AND seq IS NOT NULL GROUP BY topic_uuid, "partition", run, process
            UNION SELECT topic_uuid, "partition", "offset" FROM settled WHERE kind = 'config_changed'),
        gone AS (
            SELECT topic_uuid, "partition", min("offset") AS first, max("offset") AS last
            FROM settled ANTI JOIN newest USING (topic_uuid, "partition", "offset")
            WHERE received < {instant} GROUP BY ALL)
        SELECT g.topic_uuid, g."partition", g.first, g.last,
            list(n."offset" ORDER BY n."offset") FILTER (n."offset" IS NOT NULL)
        FROM gone AS g LEFT JOIN newest AS n ON n.topic_uuid = g.topic_uuid
            AND n."partition" = g."partition" AND n."offset" BETWEEN g.first AND g.last
        GROUP BY ALL ORDER BY ALL"""
    return [
        Range(uuid, partition, first, last, kept or ())
        for uuid, partition, first, last, kept in db.execute(query).fetchall()
    ]


def _item_ranges(db: duckdb.DuckDBPyConnection, lake: AnyLake, instant: str) -> list[Range]:
    query = f"""
        WITH items AS (
            SELECT topic_uuid, "partition", "offset", accepted
            FROM {source("eval_items", lake.files("eval_items"))} LEFT JOIN (
                SELECT lease, max(accepted) AS accepted
                FROM {source("evals", lake.files("evals"))} GROUP BY lease) USING (lease)),
        young AS (
            SELECT topic_uuid, "partition", min("offset") AS first FROM items
            WHERE accepted >= {instant} GROUP BY ALL)
        SELECT topic_uuid, "partition", 0, max("offset")
        FROM items LEFT JOIN young USING (topic_uuid, "partition")
        WHERE accepted < {instant} AND "offset" < coalesce(first, "offset" + 1)
        GROUP BY ALL ORDER BY ALL"""
    return [Range(*row[:4]) for row in db.execute(query).fetchall()]
