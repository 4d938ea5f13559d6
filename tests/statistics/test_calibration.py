"""The intervals cover what they say, and unrelated series are not "related": measured, and written down.

``DRIFTLINE_WRITE_DOCS=1 pytest tests/statistics/test_calibration.py`` writes the table of docs/analysis.md
anew. The tests beside this one check the macros against the same formulas.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import oracles
from oracles import Floats

PAGE = Path(__file__).parents[2] / "docs" / "analysis.md"
BEGIN, END = "<!-- calibration -->\n", "<!-- end of calibration -->\n"
ROWS = 1000


def noise(name: str, random: np.random.Generator, n: int) -> Floats:
    at = np.arange(n)
    made: dict[str, Callable[[], Floats]] = {
        "white noise": lambda: random.normal(size=(ROWS, n)),
        "AR(1) 0.5": lambda: oracles.ar1(random, ROWS, n, 0.5),
        "AR(1) 0.9": lambda: oracles.ar1(random, ROWS, n, 0.9),
        "AR(1) 0.95": lambda: oracles.ar1(random, ROWS, n, 0.95),
        "AR(1) 0.99": lambda: oracles.ar1(random, ROWS, n, 0.99),
        "AR(1) 0.95 under white noise": lambda: (
            oracles.ar1(random, ROWS, n, 0.95) + random.normal(size=(ROWS, n))
        ),
        "random walk": lambda: np.cumsum(random.normal(size=(ROWS, n)), axis=1),
        "falling trend": lambda: 5 * np.exp(-4 * at / n) + 0.3 * random.normal(size=(ROWS, n)),
        "heavy tails (t, 2 df)": lambda: random.standard_t(2, size=(ROWS, n)),
        "momentum walk": lambda: np.cumsum(oracles.ar1(random, ROWS, n, 0.9), axis=1),
        "one period of 50": lambda: (
            np.sin(at * 2 * np.pi / 50 + random.uniform(0, 6, size=(ROWS, 1)))
            + 0.3 * random.normal(size=(ROWS, n))
        ),
    }
    return made[name]()


STATIONARY = [
    "white noise",
    "AR(1) 0.5",
    "AR(1) 0.9",
    "AR(1) 0.95",
    "AR(1) 0.99",
    "AR(1) 0.95 under white noise",
]
WANDERING = ["white noise", "AR(1) 0.95", "random walk", "falling trend", "heavy tails (t, 2 df)"]
WANDERING += ["momentum walk", "one period of 50"]


def measured() -> tuple[dict[str, tuple[float, float, float, float]], dict[tuple[str, str], float]]:
    """Coverage of compare, slope and forecast, how often a level fell, and how often pairs are "related"."""
    random = np.random.default_rng(20260520)
    covered = {}
    for name in STATIONARY:
        mean = oracles.mean_of_difference(noise(name, random, 200) - noise(name, random, 200))
        compare = np.abs(mean.mean) <= oracles.t_95(np.maximum(mean.effective - 1, 1)) * mean.se
        series = noise(name, random, 450)
        slope = oracles.theil_sen(series[:, :400])
        line, within = oracles.forecast(series[:, :400], 50)
        covered[name] = (
            float(compare.mean()),
            float(((slope.low <= 0) & (slope.high >= 0)).mean()),
            float((np.abs(series[:, 449] - line) <= within).mean()),
            float(oracles.fallen(series[:, :400]).mean()),
        )
    false = {}
    for i, one in enumerate(WANDERING):
        for other in WANDERING[i:]:
            found = oracles.related(noise(one, random, 400), noise(other, random, 400))
            limit = oracles.t_95(found.effective - 2)
            false[one, other] = float((np.abs(found.t) > limit).mean())
    return covered, false


def table(covered: dict[str, tuple[float, float, float, float]], false: dict[tuple[str, str], float]) -> str:
    lines = ["| noise | `compare_summary` covers 0 | slope of `trend` covers 0 | forecast covers the point "]
    lines[0] += "| `trend` says that it fell |"
    lines += ["|---|---|---|---|---|"]
    lines += [f"| {name} | {a:.1%} | {b:.1%} | {c:.1%} | {d:.1%} |" for name, (a, b, c, d) in covered.items()]
    lines += [
        "",
        "| unrelated series | found related at p < 0.05, against itself | at worst against another |",
    ]
    lines += ["|---|---|---|"]
    for name in WANDERING:
        worst = max(share for pair, share in false.items() if name in pair and pair[0] != pair[1])
        lines += [f"| {name} | {false[name, name]:.1%} | {worst:.1%} |"]
    return "\n".join(lines) + "\n"


def test_intervals_cover_and_unrelated_series_are_not_related_as_the_page_says() -> None:
    """A/A pairs, slopes of nothing and forecasts are covered about 95 % of times, also in slow noise."""
    covered, false = measured()
    before, rest = PAGE.read_text().split(BEGIN)
    _, after = rest.split(END)
    text = before + BEGIN + "\n" + table(covered, false) + "\n" + END + after
    if os.environ.get("DRIFTLINE_WRITE_DOCS"):
        PAGE.write_text(text)
    assert PAGE.read_text() == text
    for name, shares in covered.items():
        slow = name in ("AR(1) 0.99", "AR(1) 0.95 under white noise")
        assert all((0.85 if slow else 0.93) <= share <= 0.995 for share in shares[:3]), (name, shares)
        assert shares[3] <= (0.05 if name in ("white noise", "AR(1) 0.5", "AR(1) 0.9") else 1), (name, shares)
    for pair, share in false.items():
        assert share <= (0.12 if pair[0] == pair[1] == "one period of 50" else 0.07), (pair, share)
