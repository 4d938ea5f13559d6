"""From the YAML file and the environment to one tree of plain values, each knowing where it was written.

Order, later wins: file, environment. Keys inside ``monitoring:`` are merged with those at the top; the same
key in both with different values is an error that names both, and so is a key that is written twice in one
block.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from driftline.errors import SettingsError
from driftline.settings_schema import SHORT_NAMES, WRAPPER

FILE_MAX_BYTES = 1 << 20
PREFIX = "DRIFTLINE_"
OTHER_NAMES = re.compile(
    r"DRIFTLINE_(CONFIG|REALDATA|LOG|LOG_LEVEL|(RUN|TEST|DEMO|SIM|CI|REQUIRE|WRITE)(_.*)?)"
)
"""Environment variables that are no keys of the file: of the SDK, the command line and the tests."""


class EnvText(str):
    """The text of an environment variable: YAML, unless the key takes text."""

    __slots__ = ()


class Tree(NamedTuple):
    """Plain values, and for each path that was not written where it stands, where it was."""

    values: dict[str, Any]
    written_at: dict[str, str]

    def where(self, path: str) -> str:
        """How the user wrote the key ``path``: inside ``monitoring:``, or as an environment variable."""
        at = path
        while at:
            if at in self.written_at:
                return self.written_at[at] + path[len(at) :]
            at = re.sub(r"(\.[^.\[]*|\[[^\]]*\]|^[^.\[]+)$", "", at)
        return path


def read(path: Path | None, env: Mapping[str, str]) -> Tree:
    """The merged tree. Raises SettingsError."""
    try:
        tree = _hoist(_parse_file(path) if path else {})
    except RecursionError:
        raise SettingsError("", None, f"{path}: an alias refers to itself, or nested too deeply") from None
    for name in sorted(env):
        key = _key_of(name, env)
        if key:
            _overlay(tree, key, EnvText(env[name]), name)
    return tree


def parse(text: str, *, source: str) -> Any:
    """The value of a YAML text; ``source`` names it in errors, which never show the text itself."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise SettingsError(
            "", None, f"{source}{place}: not YAML: {error.problem or error.context}"
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingsError("", None, f"{source}: not YAML: {str(error).splitlines()[0][:200]}") from None


def env_name(path: str) -> str:
    """The environment variable of a key.

    >>> env_name("evaluation.every.steps")
    'DRIFTLINE_EVALUATION__EVERY__STEPS'
    """
    return PREFIX + path.replace(".", "__").upper()


class _Loader(yaml.SafeLoader):
    """Safe, and refuses a key that is written twice (plain YAML would take the last in silence)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[str, yaml.Mark] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be text", key.start_mark)
            if key.value in seen and key.value != "<<":
                problem = f"the key {key.value!r} is written twice, first in line {seen[key.value].line + 1}"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen[key.value] = key.start_mark
        return super().construct_mapping(node, deep)


def _parse_file(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > FILE_MAX_BYTES:
            raise SettingsError("", None, f"{path}: larger than 1 MiB, this is no settings file")
        text = path.read_text("utf-8")
    except FileNotFoundError:
        remedy = "there is no such file: write it, or leave --config and DRIFTLINE_CONFIG away"
        raise SettingsError("", None, f"{path}: {remedy}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError("", None, f"{path}: cannot be read: {error}") from None
    values = parse(text, source=str(path))
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise SettingsError("", None, f"{path}: must be a map of keys, e.g. `storage: {{root: ./data}}`")
    return values


def _hoist(values: dict[str, Any]) -> Tree:
    """Merges what stands inside the wrapper block with what stands outside."""
    inside = values.get(WRAPPER)
    tree = Tree({key: _copy(value) for key, value in values.items() if key != WRAPPER}, {})
    if inside is None:
        return tree
    if not isinstance(inside, dict):
        raise SettingsError(WRAPPER, inside, "write a map of keys below it")
    _merge(tree, tree.values, inside, "", f"{WRAPPER}.")
    return tree


def _merge(tree: Tree, into: dict[str, Any], values: dict[str, Any], path: str, source: str) -> None:
    for key, value in values.items():
        here = f"{path}{key}"
        if key not in into:
            into[key] = _copy(value)
            tree.written_at[here] = f"{source}{key}"
        elif isinstance(into[key], dict) and isinstance(value, dict):
            _merge(tree, into[key], value, f"{here}.", f"{source}{key}.")
        elif into[key] is None:
            into[key] = _copy(value)
            tree.written_at[here] = f"{source}{key}"
        elif value is not None and value != into[key]:
            shown = ("***", "***") if "password" in str(key) else (value, into[key])
            remedy = f"{here} is {shown[1]!r} outside of `{WRAPPER}`: keep one of the two"
            raise SettingsError(f"{source}{key}", shown[0], remedy)


def _copy(value: Any) -> Any:
    """Maps are copied, since overlays write into them; a YAML alias would share them."""
    return {key: _copy(inner) for key, inner in value.items()} if isinstance(value, dict) else value


def _key_of(name: str, env: Mapping[str, str]) -> str | None:
    """The path that an environment variable sets; None if it is none of ours."""
    if name in SHORT_NAMES:
        path = SHORT_NAMES[name]
        long = env_name(path)
        if long in env and env[long] != env[name]:
            raise SettingsError(name, env[name], f"{long} is {env[long]!r}: keep one of the two")
        return path
    if not name.startswith(PREFIX) or OTHER_NAMES.fullmatch(name):
        return None
    path = name.removeprefix(PREFIX).lower().replace("__", ".")
    return path.removeprefix(f"{WRAPPER}.")


def _overlay(tree: Tree, path: str, value: EnvText, name: str) -> None:
    into, keys = tree.values, path.split(".")
    for depth, key in enumerate(keys[:-1]):
        inner = into.get(key)
        if isinstance(inner, EnvText):
            inner = parse(inner, source=tree.where(".".join(keys[: depth + 1])))
        if inner is None:
            inner = {}
        if not isinstance(inner, dict):
            raise SettingsError(name, str(value), f"{'.'.join(keys[: depth + 1])} is not a map of keys")
        into[key] = inner
        into = inner
    last = keys[-1]
    into[last] = value
    tree.written_at[path] = name
