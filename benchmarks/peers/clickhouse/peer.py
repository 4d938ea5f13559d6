"""ClickHouse in this process (chdb): answers one JSON line for each on standard input.

``{"load": file, "folder": where}`` makes the table ``samples`` of a Parquet file, ``{"query": sql}`` answers with the
rows and how long it took: ``{"rows": [...], "ms": ..., "cpu_ms": ...}``.
"""

from __future__ import annotations

import io
import json
import sys
import time

import pyarrow as pa
from chdb import session

TABLE = """
CREATE TABLE samples (run LowCardinality(String), rank Int32, metric LowCardinality(String), step Int64,
    time DateTime64(6, 'UTC'), value Float64, weight Float64)
ENGINE = MergeTree ORDER BY (run, metric, rank, step)
"""


def main() -> None:
    database = None
    for line in sys.stdin:
        asked = json.loads(line)
        if "load" in asked:
            database = session.Session(asked["folder"])
            database.query("CREATE DATABASE IF NOT EXISTS bench ENGINE = Atomic")
            database.query("USE bench")
            database.query(TABLE)
            columns = "run, rank, metric, step, time, value, weight"
            database.query(f"INSERT INTO samples SELECT {columns} FROM file('{asked['load']}', Parquet)")
            database.query("OPTIMIZE TABLE samples FINAL")
            found = database.query("SELECT sum(data_compressed_bytes) FROM system.parts WHERE active", "CSV")
            print(json.dumps({"bytes": int(str(found).strip())}), flush=True)
            continue
        wall, cpu = time.perf_counter(), time.process_time()
        answer = database.query(asked["query"], "ArrowStream").bytes()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        table = pa.ipc.open_stream(io.BytesIO(answer)).read_all()
        rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
        rows = [[cell.decode() if isinstance(cell, bytes) else cell for cell in row] for row in rows]
        print(json.dumps({"rows": rows, "ms": wall * 1e3, "cpu_ms": cpu * 1e3}), flush=True)


if __name__ == "__main__":
    main()
