"""Quantiles are within the histogram's bound on every distribution, also across merged panes and ranks."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from driftline import events
from driftline.config import PipelineConfig, WindowSpec
from driftline.streams import histogram

BOUND = 0.0055
SMALLEST = 5e-324
"""Denormals are so far apart: there no relative bound can hold."""
QUANTILES = [0.0, 0.001, 0.01, 0.1, 0.25, 0.75, 0.9, 0.999, 1.0]
COUNT = 3_000
Draw = Callable[[np.random.Generator], Any]


def near_borders(chance: np.random.Generator) -> Any:
    """The borders of buckets, rounded to floats, and their neighbours on both sides."""
    border = 2.0 ** (chance.integers(-400, 400, COUNT) / histogram.PER_OCTAVE)
    towards = chance.choice([-np.inf, np.inf, 0.0], COUNT)
    return np.where(towards == 0.0, border, np.nextafter(border, towards))


HARD: dict[str, Draw] = {
    "lognormal": lambda chance: chance.lognormal(0, 8, COUNT),
    "Pareto of infinite mean": lambda chance: chance.pareto(0.3, COUNT) + 1,
    "two peaks 20 orders apart": lambda chance: np.where(
        chance.random(COUNT) < 0.5, chance.normal(1e-10, 1e-12, COUNT), chance.normal(1e10, 1e8, COUNT)
    ),
    "all orders of magnitude": lambda chance: 10.0 ** chance.uniform(-323, 308, COUNT),
    "denormals": lambda chance: chance.integers(1, 10**6, COUNT) * SMALLEST,
    "the edge of denormals": lambda chance: 2.0 ** chance.uniform(-1026, -1018, COUNT),
    "the largest": lambda chance: chance.uniform(1e308, 1.797e308, COUNT),
    "borders of buckets": near_borders,
    "negative": lambda chance: -chance.lognormal(5, 5, COUNT),
    "mixed signs and zeros": lambda chance: (
        chance.choice([-1.0, 0.0, 1.0], COUNT) * chance.lognormal(0, 6, COUNT)
    ),
    "constant": lambda chance: np.full(COUNT, 0.1),
    "one outlier": lambda chance: np.append(np.full(COUNT - 1, 1e-9), 1e9),
    "few values": lambda chance: chance.choice([-3.5, -0.0, 0.0, 7.0], COUNT),
}


def drawn(name: str) -> Any:
    return HARD[name](np.random.default_rng(sorted(HARD).index(name)))


def windows_of(log: Any, values: Any, specs: list[WindowSpec]) -> list[dict[str, Any]]:
    """Windows over steps: ten values a step, of three ranks in turns."""
    log.configure(PipelineConfig(windows=specs, quantiles={"x": QUANTILES}))
    for at in range(0, len(values), 100):
        some = [("x", (at + n) // 10, 0, float(v), 1.0) for n, v in enumerate(values[at : at + 100])]
        rank = at // 100 % 3
        log.frame(some, process=f"p{rank}", rank=rank)
    for rank in range(3):
        log.event(events.ProcessEnded, process=f"p{rank}")
    return list(log.rows())


def named(row: dict[str, Any]) -> dict[float, float]:
    found = {0.5: row["p50"], 0.95: row["p95"], 0.99: row["p99"]}
    return found | {float(name[1:]) / 100: value for name, value in dict(row["quantiles"]).items()}


@pytest.mark.parametrize("name", HARD)
def test_every_quantile_of_a_hard_distribution_is_within_the_bound(log: Any, naive: Any, name: str) -> None:
    """In windows of one pane and in those merged of many: nearest rank, 0.55 % of the exact value at most."""
    values = drawn(name)
    specs = [WindowSpec("step", 300, 300), WindowSpec("step", 100, 20), WindowSpec("step", 20, 20)]
    rows = windows_of(log, values, specs)
    assert len(rows) > 20
    for row in rows:
        inside = values[max(0, row["start"] * 10) : row["end"] * 10]
        ordered = sorted(float(v) for v in inside)
        assert row["count"] == len(ordered)
        found = named(row)
        assert len(found) == len(QUANTILES) + 3
        for q, value in found.items():
            exact = naive.quantile(ordered, q)
            assert abs(value - exact) <= BOUND * abs(exact) + SMALLEST, (name, q, row["start"])
            assert row["min"] <= value <= row["max"]
        assert [found[q] for q in sorted(found)] == sorted(found.values()), "quantiles fall"


@pytest.mark.parametrize("name", HARD)
def test_buckets_keep_the_order_of_values_and_their_middles_the_bound(name: str) -> None:
    """A larger value never lies in a lower bucket; a middle is within the bound of all in its bucket."""
    values = np.sort(drawn(name))
    codes = histogram.bucket(values.copy())
    assert (np.diff(codes) >= 0).all()
    assert ((codes >= 0) & (codes < 1 << histogram.CODE_BITS)).all()
    middles = histogram.middle(codes)
    assert (np.abs(middles - values) <= BOUND * np.abs(values) + SMALLEST).all()
    mirrored = histogram.middle(histogram.bucket(-values))
    np.testing.assert_array_equal(mirrored, -middles)


def test_every_border_of_an_octave_is_exact() -> None:
    """(2**(i/64), 2**((i+1)/64)], judged with integers: the float below a border, and the one above it."""
    for octave in (-1074, -1023, -1022, -30, 0, 1, 52, 1023):
        for part in range(histogram.PER_OCTAVE):
            about = np.ldexp(2.0 ** (part / histogram.PER_OCTAVE), octave)
            for value in (np.nextafter(about, 0.0), about, np.nextafter(about, np.inf)):
                if not 0 < value < np.inf:
                    continue
                above = int(np.diff(histogram.bucket(np.array([1.0, value])))[0])  # 1.0 ends its bucket
                power = Fraction(float(value)) ** histogram.PER_OCTAVE
                assert Fraction(2) ** (above - 1) < power <= Fraction(2) ** above, (octave, part)
