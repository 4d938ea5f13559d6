"""Secrets come from the environment or a file, and nothing that Driftline writes or says shows them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
import yaml

from driftline import config
from driftline.cli.app import app
from driftline.connection import KafkaSettings, with_secrets_of, without_secrets
from driftline.errors import SettingsError
from driftline.producers.plain import plain
from driftline.settings import load
from driftline.settings_docs import in_effect, markdown

SECRET = "hush-12345"
SASL = "security_protocol: SASL_SSL, sasl_mechanism: PLAIN, sasl_username: u"
ENVIRON = {
    "DRIFTLINE_KAFKA__SASL_PASSWORD": SECRET,
    "DRIFTLINE_KAFKA__SSL_KEY_PASSWORD": SECRET,
}


def written(folder: Path, text: str) -> Path:
    path = folder / "driftline.yaml"
    path.write_text(text)
    return path


def test_settings_show_no_secret_however_they_are_shown(tmp_path: Path) -> None:
    settings = load(written(tmp_path, f"kafka: {{{SASL}}}"), ENVIRON)
    assert (settings.kafka.sasl_password, settings.kafka.ssl_key_password) == (SECRET, SECRET)
    shown = [
        repr(settings),
        str(settings.kafka),
        f"{settings.kafka!r:>200}",
        in_effect(tmp_path / "driftline.yaml", ENVIRON),
        markdown(),
        str(
            plain({"mine": settings, "list": [settings.kafka], "args": argparse.Namespace(k=settings.kafka)})
        ),
        config.encode(settings.pipeline).decode() + config.encode(settings.scheduler).decode(),
    ]
    assert [text for text in shown if SECRET in text] == []


def test_settings_without_secrets_hold_none_and_get_them_back_from_those_of_the_place() -> None:
    """What is sent to another process carries no password; there it is read again."""
    whole = KafkaSettings(bootstrap="k:1", sasl_username="u", sasl_password=SECRET, ssl_key_password=SECRET)
    bare = without_secrets(whole)
    assert (bare.sasl_password, bare.ssl_key_password) == (None, None)
    assert SECRET.encode() not in msgspec.msgpack.encode(bare)
    assert (bare.bootstrap, bare.sasl_username) == ("k:1", "u")
    assert with_secrets_of(bare, whole) == whole


def test_a_secret_is_read_from_the_file_that_is_named_for_it(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"  {SECRET}\n")
    text = f"kafka: {{{SASL}, sasl_password_file: {file}, ssl_key_password_file: {file}}}"
    settings = load(written(tmp_path, text), {})
    assert (settings.kafka.sasl_password, settings.kafka.ssl_key_password) == (SECRET, SECRET)
    from_environment = {
        "DRIFTLINE_KAFKA__SASL_PASSWORD_FILE": str(file),
        "DRIFTLINE_KAFKA__SSL_KEY_PASSWORD_FILE": str(file),
    }
    assert load(written(tmp_path, f"kafka: {{{SASL}}}"), from_environment) == msgspec.structs.replace(
        settings, source=str(tmp_path / "driftline.yaml")
    )


def spoiled_file(folder: Path, content: bytes) -> str:
    path = folder / "secret"
    path.write_bytes(content)
    return str(path)


@pytest.mark.parametrize(
    ("entries", "content", "says"),
    [
        ("sasl_password_file: {file}", b"\xff" + SECRET.encode(), "not UTF-8"),
        ("sasl_password_file: {file}", b"\n", "empty"),
        ("sasl_password_file: {file}/x", b"", "cannot be read"),
        ("sasl_password_file: {file}, sasl_password: " + SECRET, b"x", "keep one"),
        ("sasl_password: a, ssl_key_password_file: {file}, ssl_key_password: " + SECRET, b"x", "keep one"),
        ("sasl_password: a, bootstrap: 'SASL_SSL://u:" + SECRET + "@kafka:9092'", b"", "host:port"),
        ("sasl_password: " + SECRET + ", ssl_cafile: {file}", b"no certificate", "PEM certificates"),
        ("sasl_password: " + SECRET + ", ssl_certfile: {file}", SECRET.encode(), "certificate and key"),
        ("ssl_key_pasword: " + SECRET, b"", "ssl_key_password"),
    ],
)  # fmt: skip
def test_wrong_settings_are_named_without_the_secret(
    tmp_path: Path, entries: str, content: bytes, says: str
) -> None:
    file = spoiled_file(tmp_path, content)
    with pytest.raises(SettingsError) as caught:
        load(written(tmp_path, f"kafka: {{{SASL}, {entries.format(file=file)}}}"), {})
    assert says in str(caught.value)
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value)


def test_no_command_takes_a_secret_on_its_line() -> None:
    """A command line is read by everyone on the machine."""

    def options(command: Any) -> list[str]:
        own = [option for parameter in command.params for option in parameter.opts]
        return own + [o for inner in getattr(command, "commands", {}).values() for o in options(inner)]

    found = options(typer.main.get_command(app))
    assert "--bootstrap" in found
    words = ("pass", "secret", "token", "key", "sasl")
    counts = {"--tokens"}  # those of a language model
    assert [o for o in found if o not in counts and any(word in o for word in words)] == []


def test_what_is_secret_is_marked_as_such_in_the_settings() -> None:
    """A new secret setting must be hidden like the others: by its mark, and by the repr of the struct."""
    named = [name for name in KafkaSettings.__struct_fields__ if "password" in name or "secret" in name]
    assert named == ["sasl_password", "ssl_key_password"]
    settings = KafkaSettings(**dict.fromkeys(named, SECRET))  # type: ignore[arg-type]
    assert SECRET not in repr(settings)
    shown = yaml.safe_load(in_effect(None, {f"DRIFTLINE_KAFKA__{n.upper()}": SECRET for n in named}))
    assert {shown["kafka"][name] for name in named} == {"***"}
