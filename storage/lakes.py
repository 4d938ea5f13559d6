"""The tables of a root, wherever it is."""

from __future__ import annotations

import os

from driftline.storage.lake import Lake
from driftline.storage.object_lake import ObjectLake
from driftline.storage.objects import is_remote

AnyLake = Lake | ObjectLake


def open_lake(root: str | os.PathLike[str]) -> AnyLake:
    """Opens them for writing; see :class:`Lake` and :class:`ObjectLake`."""
    return ObjectLake(root) if is_remote(root) else Lake(root)
