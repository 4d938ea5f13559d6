"""What the questions about steps, ranks and wall time cost on 20,000,000 samples, after compaction.

The tables are those of ``query.py`` (64 ranks, 50 metrics, four of them spans). Each macro is asked in a
DuckDB of its own with ``memory_limit`` 2 GB, so that what one keeps helps no other; ``cpu_s_<macro>`` is the
least CPU time of the turns, and ``failed`` names those that did not fit into the memory.

    python benchmarks/query_system.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb
from query import ASKED, RUN, live

from driftline.storage import catalog
from driftline.storage.tables import TABLE_NAMES

TURNS = 2
ASK = {
    "steps": f"FROM steps('{RUN}')",
    "critical_path": f"FROM critical_path('{RUN}')",
    "speed_up": f"FROM speed_up('{RUN}')",
    "rank_skew": f"FROM rank_skew('{RUN}')",
    "ranks": f"FROM ranks('{RUN}')",
    "rank_heat": f"FROM rank_heat('{RUN}')",
    "goodput": f"FROM goodput('{RUN}')",
    "goodput_ledger": f"FROM goodput_ledger('{RUN}')",
    "utilisation": f"FROM utilisation('{RUN}')",
    "throughput_over_time": f"FROM throughput_over_time('{RUN}')",
    "scaling": "FROM scaling()",
    "lineage": f"FROM lineage('{RUN}', '{ASKED}', 100)",
    "rests_on": f"FROM rests_on('{RUN}', '{ASKED}', 100)",
}


def measure(database: Path) -> tuple[dict[str, float], list[str]]:
    """CPU seconds of each question, and those that ended in an error."""
    spent, failed = {}, []
    for name, sql in ASK.items():
        least = float("inf")
        for _ in range(TURNS):
            with duckdb.connect(str(database), read_only=True) as db:
                db.execute("SET memory_limit = '2GB'")
                cpu = time.process_time()
                try:
                    db.execute(sql).fetchall()
                except duckdb.OutOfMemoryException:
                    failed.append(name)
                    break
                least = min(least, time.process_time() - cpu)
        else:
            spent[f"cpu_s_{name}"] = least
    return spent, failed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="1,600,000 samples")
    steps, commits = (500, 40) if parser.parse_args().quick else (6_250, 196)
    with tempfile.TemporaryDirectory(prefix="driftline-bench-") as name:
        folder = Path(name)
        lake = live(folder / "data", steps, commits)
        for table in TABLE_NAMES:
            lake.compact(table, at_least=2)
        database = folder / "catalog.duckdb"
        with duckdb.connect(str(database)) as db:
            catalog.define(db, {table: lake.files(table) for table in TABLE_NAMES})
        spent, failed = measure(database)
    result: dict[str, Any] = {"samples": steps * 64 * 50, **{k: round(v, 2) for k, v in spent.items()}}
    result |= {"failed": failed, "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
