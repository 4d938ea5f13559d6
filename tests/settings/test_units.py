"""Durations, sizes and fractions: what is read, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftline import units


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("100ms", 100_000),
        ("30s", 30_000_000),
        ("10m", 600_000_000),
        ("2 hours", 7_200_000_000),
        ("7d", 604_800_000_000),
        ("1h30m", 5_400_000_000),
        ("1.5s", 1_500_000),
        ("0s", 0),
        ("250us", 250),
        ("3 µs", 3),
        ("0.1ms", 100),
    ],
)
def test_durations(text: str, us: int) -> None:
    assert units.duration_us(text) == us


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        5,
        5.0,
        None,
        True,
        "ms",
        "-5s",
        "5 parsecs",
        "1s!",
        "0.5us",
        "1e3s",
        "200 years",
        "1000w2000w3000w",
    ],
)
def test_a_duration_that_is_none_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        units.duration_us(text)


@given(st.integers(0, units.DURATION_MAX_US))
def test_a_duration_written_is_read_back(us: int) -> None:
    assert units.duration_us(units.duration_text(us)) == us


@given(st.integers(0, units.SIZE_MAX))
def test_a_size_written_is_read_back(size: int) -> None:
    assert units.size_bytes(units.size_text(size)) == size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *[("64MiB", 1 << 26), ("3 GiB", 3 << 30), ("1TiB", 1 << 40), ("1.5kib", 1536)],
        *[("2 GB", 2 * 10**9), ("4mb", 4_000_000), ("3KB", 3_000), (512, 512), ("512", 512), ("7b", 7)],
    ],
)
def test_sizes(text: object, size: int) -> None:
    assert units.size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "5 bananas", 1.5, True, None, "-1", "2000 TiB", "0.3B"])
def test_a_size_that_is_none_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        units.size_bytes(text)


@pytest.mark.parametrize(
    ("text", "value"), [("15%", 0.15), (0.15, 0.15), (1, 1.0), ("0", 0.0), ("100 %", 1.0)]
)
def test_fractions(text: object, value: float) -> None:
    assert units.fraction(text) == value


@pytest.mark.parametrize("text", ["101%", 1.5, -0.1, "half", None, True, float("nan"), "nan", "inf%"])
def test_a_fraction_that_is_none_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        units.fraction(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("989 TFLOPS", 989e12),
        ("1.5 PFLOP/s", 1.5e15),
        ("6e9", 6e9),
        ("42 GFLOP", 42e9),
        (7, 7.0),
        (1e15, 1e15),
    ],
)
def test_flops(text: object, number: float) -> None:
    assert units.flops(text) == number


@pytest.mark.parametrize("text", ["", "fast", "0", -1, "1e400", "6 GB", True, None, float("nan"), "5 T"])
def test_flops_that_are_none_are_refused(text: object) -> None:
    with pytest.raises(ValueError, match="TFLOPS"):
        units.flops(text)
