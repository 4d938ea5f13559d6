"""Compiled loops over arrays: what a loop in Python would do, sample by sample, at the speed of C.

Kernels are plain functions of arrays and numbers, compiled by numba without any of its freedoms in floating
point (no reordering, no contraction), so they give what the same loop gives in Python. They keep no state and
raise nothing: whoever calls them makes room first. Why numba: NumPy's own loops make ten passes and more over
the samples, and a compiler at installation is nothing to ask of those who run this.

A kernel calls only kernels of its own file: numba notices a change in that file alone, and would go on with
old code for a caller elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compiled(function: Callable[..., Any]) -> Any:
    """Compiles at the first call and keeps the result on disk, for the next process, where there is a place.

    ``NUMBA_CACHE_DIR`` names one; else it is beside the source, or below the home folder.
    """
    options: dict[str, Any] = {"error_model": "numpy", "nogil": True}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # neither the source's folder nor the home folder can be written to
        return numba.njit(**options)(function)
