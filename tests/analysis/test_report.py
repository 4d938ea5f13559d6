"""The report: one page that needs nothing else, looked at in a browser; bounded; hostile texts stay texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from driftline.analysis.report import page
from driftline.analysis.report_words import difference, flat
from driftline.errors import BadData
from driftline.storage.open import Catalog

MADE = {"command": "driftline report", "when": "2026-11-30 12:00", "version": "0"}
HOSTILE = "<script>alert('run')</script>"
SIZE_MAX = 3_000_000


@pytest.fixture(scope="module")
def pages(catalog: Catalog) -> dict[str, str]:
    """The reports of this module, each made once."""
    named = {"one": ["01a-first"], "two": ["01a-first", "01b-again"], "hostile": [HOSTILE], "bare": ["bare"]}
    return {name: page(catalog, runs, [], **MADE) for name, runs in named.items()}


@pytest.mark.parametrize("name", ["one", "two", "hostile", "bare"])
def test_a_report_is_well_formed_and_needs_nothing_from_elsewhere(
    name: str, pages: Any, pages_checked: Any
) -> None:
    tags = pages_checked(pages[name])
    assert "h1" in tags.tags
    assert len(pages[name]) < SIZE_MAX


@pytest.mark.parametrize(
    "says",
    [
        "Finished after 2 min 10 s, at step 119 on 4 ranks.",
        "1 are NaN",
        "1 alert, all resolved: loss-spike (steps 60-62).",
        "exact_match, sums",
        "loss is 6 at step 60: 5.4 above the normal 0.6",
        "model.layers",
        "driftline report",
        "11111111-1111-1111-1111-111111111111",
    ],
)
def test_a_report_says_how_the_run_went(says: str, pages: Any) -> None:
    assert says in pages["one"]


def test_a_comparison_shows_what_differs(pages: Any) -> None:
    assert "Configuration: what differs" in pages["two"]
    assert "0.002" in pages["two"]
    assert "model.layers" not in pages["two"]
    assert "2 runs of digits" in pages["two"]


def test_what_was_sent_is_text_on_the_page(pages: Any) -> None:
    text = pages["hostile"]
    assert "<script" not in text
    assert "<img" not in text
    assert not set(text) & set("\x07\x1b\x9b\u202e\u2028\0")
    assert "&lt;script&gt;alert(&#x27;run&#x27;)&lt;/script&gt;" in text


def test_a_run_that_logged_nothing_is_told_what_to_log(pages: Any) -> None:
    assert "No metric was logged at more than one step." in pages["bare"]
    assert "no evaluation was accepted yet" in pages["bare"]


def test_too_many_runs_are_refused(catalog: Catalog) -> None:
    with pytest.raises(BadData, match="no run 'x'"):
        page(catalog, ["x"], [], **MADE)


@pytest.mark.parametrize(
    ("width", "dark", "name"), [(1280, False, "two"), (390, False, "one"), (390, True, "hostile")]
)
def test_a_browser_shows_it_whole(
    width: int, dark: bool, name: str, pages: Any, browser: Any, tmp_path: Path
) -> None:
    """No error, no request, nothing wider than the window, every picture with words; dark where one asks."""
    file = tmp_path / "report.html"
    file.write_text(pages[name])
    seen = browser(file, width=width, dark=dark)
    assert seen.console == []
    assert seen.requests == []
    assert seen.wide <= seen.room
    assert (seen.untitled, seen.charts > 3) == (0, True)
    assert seen.paper == ("rgb(20, 25, 31)" if dark else "rgb(255, 255, 255)")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, {}),
        ("", {}),
        ("{broken", {"config": "{broken"}),
        (json.dumps({"a": {"b": [1, 2]}, "c": "x"}), {"a.b": "[1, 2]", "c": "x"}),
        (json.dumps({"a": {}}), {"a": "{}"}),
        ('{"x": NaN}', {"x": "NaN"}),
    ],
)
def test_a_configuration_is_dotted_keys(config: str | None, expected: dict[str, str]) -> None:
    assert flat(config) == expected


def test_a_huge_configuration_is_cut() -> None:
    assert len(flat(json.dumps({str(n): "v" * 10_000 for n in range(5_000)}))) <= 200
    assert difference([{}, {}]) == []
