"""docs/windows.md says every column of ``windows``; its pictures are what the pipeline says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from driftline import window_rows

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "windows.md").read_text(encoding="utf-8")


def test_every_column_has_its_row_and_no_row_speaks_of_another() -> None:
    table = PAGE.split("## Columns of `windows`")[1].split("\n## ")[0]
    cells = re.findall(r"^\| ((?:`[a-z0-9_]+`(?:, )?)+) \| \S", table, re.MULTILINE)
    named = [name for cell in cells for name in re.findall(r"`([a-z0-9_]+)`", cell)]
    assert sorted(named) == sorted(field.name for field in window_rows.SCHEMA)


def test_the_pictures_are_what_the_pipeline_says(tmp_path: Path) -> None:
    """Drawn anew they are the same bytes: run docs/images/draw_windows.py when a rule of time changed."""
    path = DOCS / "images" / "draw_windows.py"
    spec = importlib.util.spec_from_file_location("draw_windows", path)
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    program.main(tmp_path)
    drawn = sorted(tmp_path.iterdir())
    assert len(drawn) == 3
    for picture in drawn:
        assert f"images/{picture.name}" in PAGE
        kept = (DOCS / "images" / picture.name).read_text(encoding="utf-8")
        assert picture.read_text(encoding="utf-8") == kept, picture.name
