"""Commands whose options are made when one is used: until then there are name, panel and text.

To make those of all commands (signatures, evaluated annotations, click's objects) takes 0.07 s of CPU time
[measured], as much as to import typer; ``--help`` shows none of them, and a command needs its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import typer
from typer.core import TyperCommand
from typer.main import get_command

_F = TypeVar("_F", bound=Callable[..., Any])
MARKUP: Literal["markdown"] = "markdown"


def command(
    app: typer.Typer,
    name: str | None = None,
    *,
    panel: str | None = None,
    with_options: Callable[[Any], Callable[..., None]] | None = None,
) -> Callable[[_F], _F]:
    """As ``app.command``, in the panel ``panel`` of the help; the decorated function stays what it is.

    ``with_options`` makes of it the function that typer reads the options from and calls, if it is another.
    """

    def add(function: _F) -> _F:
        class Lazy(TyperCommand):
            @functools.cached_property
            def whole(self) -> Any:
                alone = typer.Typer(
                    add_completion=False, rich_markup_mode=MARKUP, pretty_exceptions_enable=False
                )
                alone.command(self.name)(with_options(function) if with_options else function)
                return get_command(alone)

            @property
            def params(self) -> Any:
                return self.whole.params

            @params.setter
            def params(self, none: Any) -> None:
                """Those of ``summary``, which has none."""

            def make_context(self, *given: Any, **more: Any) -> Any:
                return self.whole.make_context(*given, **more)

        def summary() -> None:
            """Typer reads the options of this function when ``app`` is made."""

        summary.__name__, summary.__doc__ = function.__name__, function.__doc__
        app.command(name or function.__name__, rich_help_panel=panel, cls=Lazy)(summary)
        return function

    return add
