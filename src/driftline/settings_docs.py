"""The settings as text: ``docs/settings.md`` from the schema, and the settings in effect as YAML.

A test holds that ``docs/settings.md`` is what :func:`markdown` gives; ``driftline config docs`` prints it.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import yaml

from driftline import detector_params, settings, settings_build, settings_file, settings_read, units
from driftline.metric_names import METRIC_NAMES
from driftline.settings_read import HIDDEN, Field, fields
from driftline.settings_schema import SHORT_NAMES, Block, File

_INTRO = """\
# Settings

<!-- Made by `driftline config docs > docs/settings.md`; change src/driftline/settings_schema.py instead. -->

All settings stand in one YAML file: the one that `--config` names, else `$DRIFTLINE_CONFIG`, else
`./driftline.yaml`; without a file the defaults below hold. The trainer (SDK) and all roles read the same
file. `driftline config check FILE` checks it, `driftline config show FILE` prints what is in effect.

```yaml
monitoring:
  enabled: true
  collection_frequency: 100ms
  metrics:
    - system: [cpu, memory, gpu]
    - application: [throughput, latency, accuracy]
    - custom: [gradient_update_time, data_loading_time]
  storage: {type: timeseries, retention: 7d}
  alerting:
    thresholds: {gpu_utilization: 95%, latency: 500ms}

storage: {root: ./driftline-data}
windows: [{axis: time, size: 10s, every: 1s}, {axis: step, size: 50, every: 1}]
alerting:
  rules: [{when: "gpu_utilization > 95 for 30s", severity: warn}]
evaluation:
  suites: [{name: addition, target: "driftline.demo.suite:addition"}]
  every: {epochs: 1, steps: 500, seconds: 600}
```

- **`monitoring:`** Every key may stand inside this block or at the top; blocks of the same name are merged.
  The same key in both places with different values is an error, and so is a key that is written twice.
- **Environment.** Every key is also a variable: `DRIFTLINE_`, then the path in capitals with two underscores
  between its parts (`DRIFTLINE_EVALUATION__EVERY__STEPS=500`). Lists and maps are written as YAML
  (`DRIFTLINE_WINDOWS='[{axis: step, size: 50, every: 1}]'`). The environment wins over the file, options
  of the command line win over both. Short names: """

_VALUES = """
- **Durations** have a unit (`100ms`, `30s`, `10m`, `2h`, `7d`), **sizes** too (`512KiB`, `64MiB`, `2GB`),
  parts of a whole are fractions or percentages (`0.15`, `15%`).
- **Errors** name the key as you wrote it, its value and the remedy, and end a command with exit code 2. A
  password is never shown; put it into `DRIFTLINE_KAFKA__SASL_PASSWORD` or a file
  (`kafka.sasl_password_file`).
- What is marked **not in effect yet** is accepted and checked, and said once at the start of every role.
"""

_METRICS = """
## Metric names

A metric may have any name, up to 600 bytes. These are known: they have a unit, into which thresholds are
converted (`latency: 500ms` is 0.5, `gpu_utilization: 95%` is 95, `accuracy: 90%` is 0.9), and short names
that may be written in thresholds and rules. *Alert* is the side of a bare bound on which `thresholds` open an
alert. Those of the groups `cpu`, `memory`, `gpu`, `disk` and `network` are measured by the SDK; the others
are what the training code logs under that name. `span/NAME` (seconds) is written by `run.span("NAME")`.

| name | unit | over ranks | group | alert | short names | meaning |
|---|---|---|---|---|---|---|
"""

_DETECTORS = """
## Detectors

The built-in detectors run by default. An entry under `detectors` with the name of one (by default its kind,
with dashes) changes it, `enabled: false` removes it, and any other name adds one:

```yaml
detectors:
  - {kind: slow_rank, params: {ratio: 1.5}}
  - {kind: loss_spike, enabled: false}
  - {kind: loss_spike, name: reward-spike, metrics: [reward]}
```
"""


def markdown() -> str:
    """The reference of all settings."""
    shorts = ", ".join(f"`{name}` for `{path}`" for name, path in SHORT_NAMES.items())
    parts = [_INTRO + shorts + "." + _VALUES]
    parts.append("\n## The top of the file\n\n" + _table(File, ""))
    parts += _blocks(File, "")
    parts.append(_METRICS + "\n".join(_metric_rows()) + "\n")
    parts.append(_DETECTORS)
    for kind in detector_params.PARAMS:
        parts.append(f"\n### `{kind}`\n\n{detector_params.as_markdown(kind)}\n")
    return "".join(parts)


def in_effect(path: str | Path | None, env: Mapping[str, str]) -> str:
    """File and environment as one YAML file, every default written out; loading it gives the same settings.

    Secrets are hidden. Raises SettingsError.
    """
    tree = settings_file.read(settings.find(path, env), env)
    file = settings_read.check(tree)
    settings_build.build(file, tree.where)
    return yaml.safe_dump(_plain(file), sort_keys=False, allow_unicode=True, width=100)


def _plain(block: Block) -> dict[str, Any]:
    return {name: _shown(getattr(block, name), field) for name, field in fields(type(block)).items()}


def _shown(value: Any, field: Field) -> Any:
    """A value as a person would write it."""
    if value is None:
        return None
    if field.key.secret:
        return HIDDEN
    match field.key.form:
        case "duration" | "seconds":
            return units.duration_text(value)
        case "size":
            return units.size_text(value)
    if isinstance(value, Block):
        return _plain(value)
    if isinstance(value, list):
        return [_plain(item) if isinstance(item, Block) else item for item in value]
    return value


def _blocks(block: type[Block], path: str) -> list[str]:
    """A section for each block inside ``block``, depth first."""
    parts = []
    for field in fields(block).values():
        inner = _block_of(field.type)
        if inner is None:
            continue
        here = f"{path}{field.name}"
        shape = "[]" if get_origin(field.type) is list else ""
        parts.append(f"\n## `{here}{shape}`\n\n{_sentence(inner)}\n\n{_table(inner, f'{here}{shape}.')}")
        parts += _blocks(inner, f"{here}{shape}.")
    return parts


def _sentence(block: type[Block]) -> str:
    return " ".join((block.__doc__ or "").split())


def _table(block: type[Block], path: str) -> str:
    lines = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for field in fields(block).values():
        says = field.key.says
        if field.key.not_yet:
            says += f" **Not in effect yet**: {field.key.not_yet}."
        lines.append(f"| `{path}{field.name}` | {_kind(field)} | {_default(field)} | {_cell(says)} |")
    return "\n".join(lines) + "\n"


def _kind(field: Field) -> str:
    if field.key.form in ("duration", "size", "fraction"):
        return field.key.form
    if field.key.form:
        return {
            "seconds": "seconds or duration",
            "positive": "number",
            "window": "duration or steps",
            "flops": "number or FLOPs",
        }.get(field.key.form, "map of name to bound")
    return _type(field.type)


def _type(kind: Any) -> str:
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_type(arg) for arg in args if arg is not type(None)))
    if origin is Literal:
        return ", ".join(f"`{arg}`" for arg in args)
    if origin is list:
        return f"list of {_type(args[0])}" if _block_of(args[0]) is None else "list of blocks"
    if origin is dict:
        return "map"
    if _block_of(kind):
        return "block"
    return {bool: "true, false", int: "whole number", float: "number", str: "text"}.get(kind, "anything")


def _block_of(kind: Any) -> type[Block] | None:
    if get_origin(kind) in (Union, types.UnionType):  # a block that may be left out
        kind = next((arg for arg in get_args(kind) if arg is not type(None)), kind)
    if get_origin(kind) is list:
        kind = get_args(kind)[0]
    return kind if isinstance(kind, type) and issubclass(kind, Block) else None


def _default(field: Field) -> str:
    if field.required:
        return "required"
    value = field.default
    if value is None or isinstance(value, Block):
        return ""
    shown = _shown(value, field)
    text = (
        yaml.safe_dump(shown, default_flow_style=True, width=1000, sort_keys=False).split("\n...")[0].strip()
    )
    return f"`{text}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _metric_rows() -> list[str]:
    sides = {"high": "above", "low": "below"}
    return [
        f"| `{m.name}` | {m.unit} | {m.reduction} | {m.group} | {sides[m.bad_when]} | "
        f"{', '.join(f'`{alias}`' for alias in m.aliases)} | {m.says} |"
        for m in METRIC_NAMES
    ]
