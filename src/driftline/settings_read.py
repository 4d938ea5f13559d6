"""Checks a tree of plain values against the structs of :mod:`driftline.settings_schema`.

Every error names the key as it was written, the value (never a secret's) and the remedy; an unknown key also
the closest known one.
"""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from driftline import units
from driftline.errors import SettingsError
from driftline.metric_names import close_to
from driftline.settings_file import EnvText, Tree, parse
from driftline.settings_schema import Block, File, Key, Metrics, Suite

DEPTH_MAX = 16
HIDDEN = "***"
_SECRET = re.compile(r"pass|pwd|secret|token|credential")

B = TypeVar("B", bound=Block)


class Place(NamedTuple):
    """Where the reader stands."""

    tree: Tree
    path: str
    key: Key

    def error(self, value: object, remedy: str) -> SettingsError:
        shown = HIDDEN if self.key.secret else str(value) if isinstance(value, EnvText) else value
        return SettingsError(self.tree.where(self.path), shown, remedy)

    def at(self, step: str, key: Key | None = None) -> Place:
        return Place(self.tree, self.path + step, key or self.key)


class Field(NamedTuple):
    """One key of a block."""

    name: str
    type: Any
    key: Key
    required: bool
    default: Any


def check(tree: Tree) -> File:
    """The file as structs. Raises SettingsError."""
    return _block(File, tree.values, Place(tree, "", Key("")))


@functools.cache
def fields(block: type[Block]) -> dict[str, Field]:
    """The keys of a block in the order of the file."""
    hints = get_type_hints(block, include_extras=True)
    found = {}
    for info in msgspec.structs.fields(block):
        hint = hints[info.name]
        kind, key = hint.__origin__, hint.__metadata__[0]
        make: Any = info.default_factory  # msgspec types it as an untyped callable
        default = info.default if make is msgspec.NODEFAULT else make()
        found[info.name] = Field(info.name, kind, key, info.required, default)
    return found


def _block(block: type[B], raw: Any, place: Place) -> B:
    values = _text(raw, place)
    if values is None:
        values = {}
    shape = _SHAPES.get(block)
    values = shape(values, place) if shape else values
    if not isinstance(values, dict):
        raise place.error(raw, f"write a map of these keys: {', '.join(fields(block))}")
    known = fields(block)
    for name in values:
        if name not in known:
            raise _no_such_key(str(name), values[name], known, place)
    given = {
        name: _value(f.type, values[name], _inside(place, name, f.key))
        for name, f in known.items()
        if name in values
    }
    for name, f in known.items():
        if f.required and name not in given:
            raise SettingsError(
                "", None, f"{place.tree.where(place.path)}: the key `{name}` is missing: {f.key.says}"
            )
    return block(**given)


def _no_such_key(name: str, value: Any, known: dict[str, Field], place: Place) -> SettingsError:
    close = close_to(name, list(known))
    # A misspelt key may hold a secret.
    secret = any(field.key.secret for field in known.values()) or _SECRET.search(name.lower()) is not None
    remedy = f"there is no such key{close or '; known here: ' + ', '.join(known)}"
    return _inside(place, name, Key("", secret=secret)).error(value, remedy)


def _inside(place: Place, name: str, key: Key) -> Place:
    return place.at(f".{name}" if place.path else name, key)


def _value(kind: Any, raw: Any, place: Place) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        empty = raw is None or (isinstance(raw, EnvText) and raw.strip() in ("", "null", "~"))
        if empty and type(None) in args:
            return None
        rest = [arg for arg in args if arg is not type(None)]
        return _value(rest[0], raw, place) if len(rest) == 1 else _any(raw, place)
    if place.key.form:
        return _formed(kind, raw, place)
    if origin is Literal:
        return _literal(args, raw, place)
    if kind is str:
        return _string(raw, place)
    value = _text(raw, place)
    if value is None and not (isinstance(kind, type) and issubclass(kind, Block)):
        raise place.error(None, "write a value, or leave the key out")
    if origin is list:
        return _list(args[0], value, place)
    if origin is dict:
        return _map(args[1], value, place)
    if isinstance(kind, type) and issubclass(kind, Block):
        return _block(kind, value, place)
    return _scalar(kind, value, place)


def _scalar(kind: Any, value: Any, place: Place) -> Any:
    if kind is bool:
        if not isinstance(value, bool):
            raise place.error(value, "write true or false")
        return value
    if kind is int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise place.error(value, "write a whole number")
        return _bounded(value, place, str)
    if kind is float:
        return _bounded(_try(units.number, value, place), place, str)
    return _any(value, place)


def _formed(kind: Any, raw: Any, place: Place) -> Any:
    match place.key.form:
        case "duration":
            return _bounded(_try(units.duration_us, raw, place), place, units.duration_text)
        case "size":
            return _bounded(_try(units.size_bytes, raw, place), place, units.size_text)
        case "fraction":
            return _try(units.fraction, raw, place)
        case "seconds":
            return _seconds(raw, place)
        case "flops":
            return _try(units.flops, raw, place)
        case "positive":
            value = _try(units.number, raw, place)
            if value <= 0:
                raise place.error(raw, "write a number above 0")
            return value
        case _:
            return _map(Any, _text(raw, place), place.at("", Key(place.key.says)))


def _seconds(raw: Any, place: Place) -> int:
    """A bare number is seconds here, since the key says so; microseconds come out."""
    try:
        value = round(units.number(raw) * 1_000_000)
    except ValueError:
        value = _try(units.duration_us, raw, place)
    return _bounded(value, place, units.duration_text)


N = TypeVar("N", int, float)


def _bounded(value: N, place: Place, show: Callable[[Any], str]) -> N:
    low, high = place.key.low, place.key.high
    if value < low:
        raise place.error(_shown(value, show), f"write at least {show(type(value)(low))}")
    if high is not None and value > high:
        raise place.error(_shown(value, show), f"write at most {show(type(value)(high))}")
    return value


def _shown(value: N, show: Callable[[Any], str]) -> object:
    return value if show is str else show(value)


def _try(convert: Callable[[object], N], raw: Any, place: Place) -> N:
    try:
        return convert(raw)
    except ValueError as error:
        raise place.error(raw, str(error)) from None


def _literal(allowed: tuple[Any, ...], raw: Any, place: Place) -> Any:
    if raw in allowed:
        return str(raw)
    names = [str(name) for name in allowed]
    raise place.error(raw, f"write one of: {', '.join(names)}{close_to(str(raw), names)}")


def _string(raw: Any, place: Place) -> str:
    if not isinstance(raw, str):
        raise place.error(raw, "write text, in quotes if YAML takes it for something else")
    if not raw.strip():
        raise place.error(raw, "write some text, or leave the key out")
    return str(raw)


def _list(inner: Any, value: Any, place: Place) -> list[Any]:
    if not isinstance(value, list):
        raise place.error(value, "write a list: [a, b]")
    return [_value(inner, item, place.at(f"[{at}]")) for at, item in enumerate(value)]


def _map(inner: Any, value: Any, place: Place) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise place.error(value, "write a map: {name: value}")
    result = {}
    for name, item in value.items():
        if not isinstance(name, str):
            raise place.error(name, "write the name in quotes: it must be text")
        result[name] = _value(inner, item, _inside(place, name, place.key))
    return result


def _any(value: Any, place: Place, depth: int = 0) -> Any:
    """Free-form values: what JSON can say."""
    value = _text(value, place)
    if depth > DEPTH_MAX:
        raise place.error("...", f"nested deeper than {DEPTH_MAX}")
    if isinstance(value, dict):
        return {
            str(name): _any(inner, _inside(place, str(name), place.key), depth + 1)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [_any(inner, place.at(f"[{at}]"), depth + 1) for at, inner in enumerate(value)]
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return _try(units.number, value, place)
    raise place.error(value, "write text, a number, true or false, a list or a map")


def _text(raw: Any, place: Place) -> Any:
    """An environment variable's text as the YAML that it is; other values as they are."""
    return parse(raw, source=place.tree.where(place.path)) if isinstance(raw, EnvText) else raw


def _metrics(raw: Any, place: Place) -> Any:
    """``metrics`` may be a list of maps; lists of one name are joined."""
    if not isinstance(raw, list):
        return raw
    joined: dict[str, list[Any]] = {}
    for at, entry in enumerate(raw):
        if not isinstance(entry, dict):
            raise place.at(f"[{at}]").error(entry, "write a map: `- system: [cpu, memory, gpu]`")
        for name, names in entry.items():
            if not isinstance(names, list):
                raise place.at(f"[{at}].{name}").error(names, "write a list: [a, b]")
            joined.setdefault(str(name), []).extend(n for n in names if n not in joined.get(str(name), []))
    return joined


def _suite(raw: Any, place: Place) -> Any:
    """A suite may be its target alone."""
    return {"target": raw} if isinstance(raw, str) else raw


_SHAPES: dict[type[Block], Callable[[Any, Place], Any]] = {Metrics: _metrics, Suite: _suite}
