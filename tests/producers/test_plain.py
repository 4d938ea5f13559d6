"""Any config becomes plain JSON, bounded, without an error."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from driftline.producers.plain import CUT, VALUES_MAX, plain


@dataclasses.dataclass
class Config:
    lr: float = 0.1
    layers: tuple[int, ...] = (1, 2)


class Color(enum.Enum):
    RED = 1


class Broken:
    def __str__(self) -> str:
        raise RuntimeError("no")


class WithDict:
    def to_dict(self) -> dict[str, int]:
        return {"x": 1}


@pytest.mark.parametrize(
    ("config", "right"),
    [
        (None, {}),
        ({"a": 1, 2: "b"}, {"a": 1, "2": "b"}),
        (Config(), {"lr": 0.1, "layers": [1, 2]}),
        (argparse.Namespace(lr=1), {"lr": 1}),
        (WithDict(), {"x": 1}),
        ({"n": math.nan, "i": -math.inf}, {"n": "nan", "i": "-inf"}),
        ({"big": 2**70}, {"big": str(2**70)}),
        (
            {"np": np.float32(1.5), "p": Path("/x"), "e": Color.RED},
            {"np": "1.5", "p": "/x", "e": "Color.RED"},
        ),
        ([1, 2], {"config": [1, 2]}),
        ({"s": {3, 1}}, {"s": [1, 3]}),
        ({"b": Broken()}, {"b": "<Broken that fails with RuntimeError>"}),
        ({"\ud800": "\ud800"}, {"?": "?"}),
    ],
)
def test_configs_of_every_kind(config: Any, right: dict[str, Any]) -> None:
    assert plain(config) == right
    json.dumps(plain(config), allow_nan=False)


def test_endless_and_huge_configs_are_cut() -> None:
    endless: dict[str, Any] = {}
    endless["self"] = endless
    assert CUT in json.dumps(plain(endless))
    many = plain({str(at): at for at in range(10 * VALUES_MAX)})
    assert len(many) <= VALUES_MAX + 1
    assert many[CUT] == CUT
    assert len(plain({"t": "x" * 10**6})["t"]) < 5000
