"""Names of metrics (case 9): every character is kept, one rule for what is too long."""

from __future__ import annotations

import pytest

from driftline.frames import MAX_NAME_BYTES
from driftline.producers.naming import metric_name


@pytest.mark.parametrize(
    "name",
    ["timing(s)/gen", "val/AR@100", "n:estimators", "准确率", "🔥loss", "a.b", "a/b", "x" * 600, "é" * 300,
     "", " ", "a\nb", "a\0b", 'q"uote', "../../etc"],
)  # fmt: skip
def test_names_are_kept_as_they_are(name: str) -> None:
    assert metric_name(name) == (name, False)


@pytest.mark.parametrize("name", ["x" * 601, "é" * 301, "🔥" * 151, "界" * 5000])
def test_long_names_are_cut_at_a_character_with_a_hash(name: str) -> None:
    stored, cut = metric_name(name)
    assert cut
    assert len(stored.encode()) <= MAX_NAME_BYTES
    head, _, tail = stored.rpartition("~")
    assert name.startswith(head)
    assert len(tail) == 16
    assert stored != metric_name(name + "y")[0]
    assert metric_name(stored) == (stored, False)


def test_text_that_utf8_cannot_carry_is_mended() -> None:
    stored, cut = metric_name("a\ud800b")
    assert cut
    assert stored.encode()
    assert stored != metric_name("a\ud801b")[0]
