"""What a custom aggregate is: a small class whose objects are folded, merged and asked for one number.

The stream workers make one object per declared metric, group and pane, give it the samples of the pane, merge
the objects of a window's panes into a fresh one and put its value into the column ``extra`` of ``windows``.
What a class must keep to is checked by :func:`driftline.testing.check_aggregate`; write a test that calls it.

    class Largest:
        version = "1"

        def __init__(self) -> None:
            self.found: float | None = None

        def update(self, values, weights):
            self.found = max([float(values.max()), *([] if self.found is None else [self.found])])

        def merge(self, other):
            if other.found is not None:
                self.update(np.array([other.found]), np.ones(1))

        def value(self):
            return self.found

        def dump(self):
            return self.found

        def load(self, data):
            self.found = data
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Aggregate(Protocol):
    """Objects are made by calling the class with the ``settings`` of the declaration as keywords.

    The same samples must always give the same value: no clock, no randomness, no order of sets. An attribute
    ``version`` of the class (text) must equal the declared one: raise both when results change.
    """

    def update(self, values: Floats, weights: Floats) -> None:
        """Further samples in the order of the log: finite values, finite weights of at least 0."""
        ...

    def merge(self, other: Any) -> None:
        """Takes in an object of later samples, which must not change, now or later."""
        ...

    def value(self) -> float | None:
        """The number; None or NaN where there is none, as without a sample."""
        ...

    def dump(self) -> Any:
        """The state as plain data: None, bool, int, float, text, lists, maps by text, NumPy arrays."""
        ...

    def load(self, data: Any) -> None:
        """Makes a fresh object what :meth:`dump` was called on."""
        ...


def check_plain(data: object) -> None:
    """Raises TypeError for what a snapshot cannot keep, or would give back in another order or type."""
    if type(data) in (list, tuple):
        for item in data:  # type: ignore[attr-defined]
            check_plain(item)
    elif type(data) is dict:
        for key, item in data.items():
            if type(key) is not str:
                raise TypeError(f"dump() holds a map with the key {key!r}: write text")
            check_plain(item)
    elif data is not None and type(data) not in (bool, int, float, str, np.ndarray):
        what = f"{type(data).__module__}.{type(data).__name__}".removeprefix("builtins.")
        raise TypeError(f"dump() holds a {what}, which is no plain data: make it a float, text, list or map")
    elif isinstance(data, np.ndarray) and data.dtype.kind not in "biuf":
        raise TypeError(f"dump() holds an array of {data.dtype}: keep numbers in it")
