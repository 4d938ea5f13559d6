"""What the tables say of an import: how far it came, and which run a log of an import is of."""

from __future__ import annotations

import duckdb

from driftline import events
from driftline.errors import BadData
from driftline.storage.lakes import AnyLake
from driftline.storage.relations import source
from driftline.storage.remedies import told


def segments(lake: AnyLake, telemetry_uuid: str) -> list[events.ImportSegment]:
    """The segments of the log with that UUID, begun and done, in its order. Raises BadData."""
    query = f"""
        SELECT payload FROM {source("log", lake.files("log"))}
        WHERE topic_uuid = ? AND kind = 'import_segment' ORDER BY "offset" """
    try:
        with lake.connect() as db:
            rows = db.execute(query, [telemetry_uuid]).fetchall()
    except duckdb.Error as error:
        raise BadData(f"what was imported into {lake.root} cannot be read: {told(error)}") from error
    found = [events.decode(payload) for (payload,) in rows]
    return [event for event in found if isinstance(event, events.ImportSegment)]
