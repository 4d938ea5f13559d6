"""Options that commands share, and the settings they make."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from driftline.cli.outcome import Level

if TYPE_CHECKING:
    from driftline.settings import Settings

Config = Annotated[
    Path | None,
    typer.Option(
        help="Settings file. Default: $DRIFTLINE_CONFIG, else ./driftline.yaml.", show_default=False
    ),
]
Bootstrap = Annotated[
    str | None,
    typer.Option(help="Kafka broker, host:port. Default: $DRIFTLINE_BOOTSTRAP, else 127.0.0.1:9092."),
]
Prefix = Annotated[str | None, typer.Option(help="Begins every topic name. Default: driftline.")]
Root = Annotated[str | None, typer.Option(help="Folder of the tables. Default: ./driftline-data.")]
LogLevel = Annotated[Level, typer.Option(help="What is logged to standard error.")]


def settings_of(
    config: Path | None,
    bootstrap: str | None = None,
    prefix: str | None = None,
    root: str | None = None,
) -> Settings:
    """Settings of file and environment; options win over both. Says what is not in effect yet."""
    from driftline.settings import load

    settings = load(config, with_options(os.environ, bootstrap=bootstrap, prefix=prefix, root=root))
    for note in settings.notes:
        print(f"note: {note}", file=sys.stderr)
    return settings


def with_options(env: Mapping[str, str], **options: str | None) -> dict[str, str]:
    """The environment with options of the command line in place of what it says."""
    long = {"bootstrap": "DRIFTLINE_KAFKA__BOOTSTRAP", "prefix": "DRIFTLINE_KAFKA__PREFIX"}
    changed = dict(env)
    for name, value in options.items():
        if value is not None:
            changed.pop(long.get(name, "DRIFTLINE_STORAGE__ROOT"), None)
            changed[f"DRIFTLINE_{name.upper()}"] = value
    return changed
