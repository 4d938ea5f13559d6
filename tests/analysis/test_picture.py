"""Charts as PNG and SVG, and answers as pages that need nothing else."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from html.parser import HTMLParser
from typing import Any

import pytest
from matplotlib.figure import Figure

from driftline.analysis.answer import Answer, Column, table
from driftline.analysis.chart import Axis, Bars, Heat, Mark, Part, Plot, line
from driftline.analysis.page import document, page_of
from driftline.analysis.picture import png, svg

NASTY = "<script>alert(1)</script> $x^2$ 漢字 \x1b[31m \u202e"
VOID = {"meta", "link", "br", "img", "path", "use", "line", "circle", "rect", "polygon", "image"}


class Tags(HTMLParser):
    """Which tags and addresses there are; whether what is opened is closed in its order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("href", "src", "xlink:href", "action", "data", "poster"):
                self.links.append(value)
            assert not name.startswith("on"), (tag, name)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def checked(page: str) -> Tags:
    """The page's tags, after what holds of every page: well-formed, no script, nothing from elsewhere."""
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert not tags.tags & {"script", "iframe", "object", "embed", "form", "base", "img"}
    assert all(link.startswith(("#", "data:")) for link in tags.links), tags.links
    assert len(tags.ids) == len(set(tags.ids))
    outside = re.sub(r'xmlns(:xlink)?="[^"]*"|data:[^"]*', "", page)
    assert not re.search(r"url\((?!#)|@import", outside)
    return tags


def charts(name: str = "loss") -> tuple[Any, ...]:
    curve = line(name, [0, 1, 2], [1.0, float("nan"), 3.0], [0, 0, 2], [2, 2, 4])
    plot = Plot(
        name, Axis("step"), Axis(name, "s"), (curve,), (Mark(1, name, "alert"), Mark(0, "", "checkpoint"))
    )
    heat = Heat(
        name, Axis("step"), Axis("rank"), Axis(name), ("0", "1"), (name, "b"), ((1.0, 2.0), (1.0, 1.0)), 1.0
    )
    bars = Bars(name, Axis(name, "s"), (name, "b"), (Part(name, (1.0, 2.0)), Part("q", (1.0, 2.0))))
    return plot, heat, bars


def test_a_png_is_a_picture_of_a_size_that_can_be_looked_at() -> None:
    for some in (charts()[:1], charts(), charts() * 2):
        content = png(some, "title")
        assert content.startswith(b"\x89PNG")
        width, height = struct.unpack(">II", content[16:24])
        assert 900 <= width <= 2500
        assert 300 <= height <= 6000


def test_an_svg_takes_its_ink_from_the_page_and_says_what_it_shows() -> None:
    text = svg(charts()[0], prefix="p-")
    assert "var(--ink)" in text
    assert 'role="img" aria-label="loss: loss, s by step.' in text
    assert "#010203" not in text


def test_a_figure_of_a_page_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    whole = Figure.draw

    def draw(figure: Figure, renderer: Any) -> None:
        drawn.append(figure)
        whole(figure, renderer)

    monkeypatch.setattr(Figure, "draw", draw)
    for chart in charts():
        assert svg(chart, prefix="p-")
    assert len(drawn) == len(charts())


@pytest.mark.parametrize("name", ["loss", NASTY])
def test_a_page_is_well_formed_and_needs_nothing_from_elsewhere(name: str) -> None:
    shown = table(
        "t", name, [{"a": 1, "b": name}, {"a": float("nan"), "b": None}], Column("a"), Column("b", name)
    )
    page = page_of(Answer("q", name, (name,), (shown,), charts(name), (name,), name, (name,)), [name])
    tags = checked(page)
    assert {"h1", "table", "caption", "th", "svg"} <= tags.tags
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "<script" not in page


def test_the_same_chart_twice_on_a_page_has_different_ids() -> None:
    checked(page_of(Answer("q", "t", charts=charts() * 2)))


def test_a_long_table_is_cut_and_says_so() -> None:
    rows = [{"a": at} for at in range(150)]
    page = page_of(Answer("q", "t", tables=(table("t", "", rows, Column("a")),)))
    assert page.count("<tr>") == 101
    assert "and 50 more rows" in page


def test_pages_have_a_title_a_language_and_colours_for_the_dark() -> None:
    page = document("a & b", [])
    assert '<html lang="en">' in page
    assert "<title>a &amp; b</title>" in page
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page


def test_without_matplotlib_the_extra_is_named() -> None:
    program = """
import sys
sys.modules["matplotlib"] = None
from driftline.cli.outcome import finish
def go():
    from driftline.analysis.picture import png
    return 0
finish(go, name="curve", debug=False)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False
    )
    assert "pip install 'driftline[plots]'" in ended.stderr
