"""The user's ``config`` as plain JSON values, whatever it holds: nothing raises, everything has a bound.

Mappings, dataclasses, namespaces and objects with ``to_dict`` become objects; sequences and sets become
arrays; NaN and infinities, which JSON lacks, become text, as does everything else. Deeper than 12 levels,
after 5,000 values or beyond 4,000 characters of text things are cut, and the cut shows ("...").
"""

from __future__ import annotations

import dataclasses
import math
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

DEPTH_MAX = 12
VALUES_MAX = 5_000
TEXT_MAX = 4_000
CUT = "..."


def plain(value: object) -> dict[str, Any]:
    """A config as an object of JSON values; what is no mapping is kept under "config".

    >>> plain({"lr": 1e-3, "layers": (2, 3), "bad": float("nan"), "fn": len})
    {'lr': 0.001, 'layers': [2, 3], 'bad': 'nan', 'fn': '<built-in function len>'}
    """
    if value is None:
        return {}
    found = _Plainer().of(value, 0)
    return found if isinstance(found, dict) else {"config": found}


class _Plainer:
    def __init__(self) -> None:
        self._left = VALUES_MAX

    def of(self, value: object, depth: int) -> Any:
        self._left -= 1
        if self._left < 0 or depth > DEPTH_MAX:
            return CUT
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return int(value) if abs(value) < 2**63 else str(int(value))[:TEXT_MAX]
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else str(float(value))
        if isinstance(value, str):
            return _text(value)
        try:
            return self._container(value, depth)
        except Exception as error:  # noqa: BLE001  foreign objects may do anything when read
            return f"<{type(value).__name__} that fails with {type(error).__name__}>"

    def _container(self, value: Any, depth: int) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        elif isinstance(value, Namespace):
            value = vars(value)
        elif not isinstance(value, Mapping) and callable(getattr(value, "to_dict", None)):
            value = value.to_dict()
        if isinstance(value, Mapping):
            made: dict[str, Any] = {}
            for key, item in value.items():
                if self._left <= 0:
                    made[CUT] = CUT
                    break
                made[_text(str(key))] = self.of(item, depth + 1)
            return made
        if isinstance(value, (set, frozenset)):
            value = sorted(value, key=repr)
        if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
            return [self.of(item, depth + 1) for item in value[: max(0, self._left)]]
        return _text(str(value))


def _text(text: str) -> str:
    clean = text.encode(errors="replace").decode()
    return clean if len(clean) <= TEXT_MAX else clean[:TEXT_MAX] + CUT
