"""No text of any column of any table is a path, SQL or a pattern (case S13)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from driftline.storage import catalog as catalog_file
from driftline.storage.lake import Lake
from driftline.storage.open import open_catalog
from driftline.storage.tables import TABLES
from driftline.storage.views import BASE_VIEW, VIEWS


def test_every_text_column_of_every_table_and_view_takes_any_name(tmp_path: Path, support: Any) -> None:
    names: list[str] = support("hostile").NAMES
    root = tmp_path / "root" / "data"
    root.parent.mkdir()
    lake = Lake(root)
    for name, table in TABLES.items():
        columns = {
            field.name: pa.array(names) if field.type == pa.utf8() else pa.nulls(len(names), field.type)
            for field in table.schema
        }
        lake.commit(name, pa.table(columns, schema=table.schema), {"u/0": -1}, {"u/0": 0})
    assert catalog_file.write(root, lambda: {name: lake.files(name) for name in TABLES})
    with (
        open_catalog(root) as catalog,
        duckdb.connect(str(root / catalog_file.CATALOG), read_only=True) as plain,
    ):
        for table in TABLES.values():
            for field in table.schema:
                if field.type == pa.utf8():
                    column = f'SELECT "{field.name}" FROM "{BASE_VIEW.get(table.name, table.name)}"'
                    assert sorted(row[0] for row in catalog.rows(column)) == sorted(names)
                    assert sorted(row[0] for row in plain.execute(column).fetchall()) == sorted(names)
        for view in VIEWS:
            if view.macro is None:
                answer = catalog.query(f'FROM "{view.name}"')
                assert answer.num_rows == len(plain.execute(f'FROM "{view.name}"').fetchall())
        for hostile in names:
            found = catalog.rows(
                "SELECT count(*) FROM samples WHERE run = ? AND metric = ?", [hostile, hostile]
            )
            assert found == [(1,)]
            assert catalog.rows("FROM correlation(?, ?, ?)", [hostile] * 3) == []
    assert [path.name for path in tmp_path.rglob("*") if path.name in names] == []
    assert list(root.parent.iterdir()) == [root]
    assert not Path("/tmp/escaped").exists()
