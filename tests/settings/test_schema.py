"""The schema, the settings that the roles use, and the documentation are about the same keys."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from driftline import config, connection, metric_names, settings, settings_build, settings_docs
from driftline.settings_file import env_name
from driftline.settings_read import Field, fields
from driftline.settings_schema import Block, File

REPOSITORY = Path(__file__).parents[2]
BUILT: tuple[type[msgspec.Struct], ...] = (
    settings.Settings,
    settings.SdkSettings,
    settings.StreamsSettings,
    settings.StorageSettings,
    settings.EvaluatorSettings,
    connection.KafkaSettings,
    config.PipelineConfig,
    config.SchedulerConfig,
    config.Triggers,
    config.DetectorSpec,
    config.WindowSpec,
)


def keys(block: type[Block], path: str = "") -> Iterator[tuple[str, Field]]:
    for field in fields(block).values():
        inner = settings_docs._block_of(field.type)
        yield f"{path}{field.name}", field
        if inner is not None:
            yield from keys(inner, f"{path}{field.name}{'[]' if 'list' in str(field.type) else ''}.")


@pytest.mark.parametrize("struct", BUILT, ids=[struct.__name__ for struct in BUILT])
def test_every_setting_of_a_role_is_filled_from_the_file(struct: type[msgspec.Struct]) -> None:
    tree = ast.parse(Path(settings_build.__file__).read_text())
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == struct.__name__
    ]
    given = {keyword.arg for call in calls for keyword in call.keywords}
    assert given >= {field.name for field in msgspec.structs.fields(struct)} - {"source"}


def test_the_reference_is_what_the_schema_says_and_names_every_key() -> None:
    text = (REPOSITORY / "docs" / "settings.md").read_text()
    assert text == settings_docs.markdown(), "make it again: driftline config docs > docs/settings.md"
    for path, _ in keys(File):
        assert f"`{path}`" in text


def test_every_key_says_in_one_line_what_it_is() -> None:
    for path, field in keys(File):
        assert 8 < len(field.key.says) < 220, path
        assert field.key.says[-1] in ".", path
        assert "\n" not in field.key.says, path


def test_names_of_keys_leave_the_environment_names_unambiguous() -> None:
    paths = [path for path, _ in keys(File) if "[]" not in path]
    names = [env_name(path) for path in paths]
    assert len(set(names)) == len(names)
    assert not [path for path in paths if "__" in path]


def test_every_group_of_host_readings_has_known_names() -> None:
    groups = {entry.group for entry in metric_names.METRIC_NAMES}
    assert set(get_args(settings.SystemMetric)) == set(metric_names.SYSTEM_GROUPS) <= groups


def test_a_metric_name_or_short_name_means_one_metric() -> None:
    every = [name for entry in metric_names.METRIC_NAMES for name in (entry.name, *entry.aliases)]
    assert len(set(every)) == len(every)
