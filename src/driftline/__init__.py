"""Driftline: metrics, checkpoints and evaluations of model training as one replayable stream.

The public SDK is :func:`init`, which returns a :class:`Run`::

    import driftline

    with driftline.init("my-run", config={"lr": 1e-3}) as run:
        for step in range(1000):
            with run.span("forward", step=step):
                ...
            run.log({"loss": loss}, step=step)

:func:`open` (with the ``storage`` extra) answers SQL from the tables that a sink wrote::

    driftline.open("./driftline-data").rows("select * from run_summary")

``import driftline`` is cheap: the SDK loads at the first use of :func:`init`. Errors are in
:mod:`driftline.errors`, settings in :mod:`driftline.settings`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from driftline.producers.launch import init
    from driftline.producers.run import Run
    from driftline.storage.open import open_catalog as open  # noqa: A004 - the name users expect

__all__ = ["Run", "init", "open"]

_HOMES = {
    "init": ("driftline.producers.launch", "init"),
    "Run": ("driftline.producers.run", "Run"),
    "open": ("driftline.storage.open", "open_catalog"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOMES[name]
    try:
        value = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if name != "open":
            raise
        raise ImportError(f"driftline.open: pip install 'driftline[storage]' ({error})") from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
