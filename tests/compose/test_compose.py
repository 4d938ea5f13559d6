"""docker-compose.yml without a Docker engine: what it says is checked, and what it starts is run.

Each role runs with its own command and environment as parsed from the file; only the broker's address, the
topic prefix and the paths of mounted files are replaced by those of the test.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from driftline.cli.app import app
from driftline.settings import load

REPOSITORY = Path(__file__).parents[2]
ROLES = ("streams", "scheduler", "evaluator", "sink")
TRAINER = """
import pathlib, sys, time, torch, driftline
from driftline.demo import model
run = driftline.init("compose", {"lr": 0.001}, rank=0, world_size=1)
adder = model.Adder(width=32, layers=1, heads=2)
for step in range(1, 101):
    run.log({"loss": 1 / step, "accuracy": step / 100}, step=step)
    if step in (50, 100):
        torch.nn.init.normal_(adder.head.weight)  # other weights: equal ones are evaluated once
        folder = pathlib.Path(sys.argv[1]) / f"step-{step}"
        model.save(adder, folder)
        run.checkpoint(folder, step=step)
    time.sleep(0.01)
run.finish()
"""


def interpolated(text: str) -> str:
    """``${NAME:-default}`` as compose reads it with nothing set."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load(interpolated((REPOSITORY / "docker-compose.yml").read_text()))
    return parsed


def test_there_is_kafka_and_one_of_each_part(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == {"kafka", *ROLES}
    known = {command.name or command.callback.__name__ for command in app.registered_commands}  # type: ignore[union-attr]
    for role in ROLES:
        service = compose["services"][role]
        assert service["command"] == ["driftline", role]
        assert role in known
        assert service["depends_on"] == {"kafka": {"condition": "service_healthy"}}
        assert service["init"] is True


def test_every_image_has_the_extra_of_its_part(compose: dict[str, Any]) -> None:
    extras = re.findall(r"^(\w+) = \[", (REPOSITORY / "pyproject.toml").read_text(), re.MULTILINE)
    chosen = {role: compose["services"][role]["build"]["args"]["EXTRAS"] for role in ROLES}
    assert set(chosen.values()) <= set(extras)
    assert chosen == {
        "streams": "streams",
        "scheduler": "streams",
        "evaluator": "evaluator",
        "sink": "storage",
    }


def test_the_environment_of_every_part_is_settings_that_load(compose: dict[str, Any]) -> None:
    for role in ROLES:
        env = compose["services"][role]["environment"]
        settings = load(REPOSITORY / "docs" / "example.yaml", env)
        assert settings.kafka.bootstrap == "kafka:19092"
        assert settings.storage.root == "/data"
        assert settings.notes == ()
        assert settings.pipeline.suites, "an evaluator without suites does not start"


def test_mounted_files_exist_and_the_tables_outlive_the_sink(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for mount in service["volumes"]:
            source = mount.split(":")[0]
            if source.startswith("./"):
                assert source == "./driftline-data" or (REPOSITORY / source).exists(), mount
            else:
                assert source in compose["volumes"], mount
    assert "data:/data" in compose["services"]["sink"]["volumes"]
    config = compose["services"]["sink"]["environment"]["DRIFTLINE_CONFIG"]
    for role in ROLES:
        assert any(mount.split(":")[1] == config for mount in compose["services"][role]["volumes"])


def test_kafkas_listeners_fit_together(compose: dict[str, Any]) -> None:
    kafka = compose["services"]["kafka"]
    env = {name: str(value) for name, value in kafka["environment"].items()}
    assert re.fullmatch(r"apache/kafka:4\.\d+\.\d+", kafka["image"])
    listeners = dict(part.split("://") for part in env["KAFKA_LISTENERS"].split(","))
    advertised = dict(part.split("://") for part in env["KAFKA_ADVERTISED_LISTENERS"].split(","))
    protocols = dict(part.split(":") for part in env["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(","))
    assert set(listeners) == set(protocols) == set(advertised) | {env["KAFKA_CONTROLLER_LISTENER_NAMES"]}
    assert env["KAFKA_INTER_BROKER_LISTENER_NAME"] in advertised
    bootstrap = compose["services"]["streams"]["environment"]["DRIFTLINE_BOOTSTRAP"]
    assert bootstrap in advertised.values()
    for name, address in advertised.items():
        assert address.split(":")[1] == listeners[name].split(":")[1]
    voters = env["KAFKA_CONTROLLER_QUORUM_VOTERS"].partition("@")[2]
    assert voters == listeners[env["KAFKA_CONTROLLER_LISTENER_NAMES"]]
    assert kafka["healthcheck"]["test"][-1].split(":")[1] in {
        value.split(":")[1] for value in listeners.values()
    }
    assert env["KAFKA_LOG_DIRS"] in kafka["volumes"][0]


def test_the_dockerfile_copies_what_exists_and_takes_the_extra() -> None:
    text = (REPOSITORY / "Dockerfile").read_text()
    for source in re.findall(r"^COPY (?!--from)(\S+)", text, re.MULTILINE):
        assert (REPOSITORY / source).exists()
    assert "ARG EXTRAS" in text
    assert "[${EXTRAS}]" in text
    ignored = (REPOSITORY / ".dockerignore").read_text().split()
    assert not {"src", "producers", "streams", "evaluator", "storage", "constraints.txt"} & set(ignored)


class Role:
    """A service of the file as a process."""

    def __init__(self, name: str, command: list[str], env: dict[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        with log.open("wb") as stream:
            self.process = subprocess.Popen(
                command,
                env=env,
                stdout=stream,
                stderr=subprocess.STDOUT,
                cwd=log.parent,
                start_new_session=True,
            )

    def stop(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(120)


@contextmanager
def running(
    compose: dict[str, Any], bootstrap: str, prefix: str, folder: Path
) -> Iterator[tuple[dict[str, Role], dict[str, str]]]:
    """All roles of the file; and the environment that a trainer would have."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DRIFTLINE_")}
    roles: dict[str, Role] = {}
    try:
        for name in ROLES:
            service = compose["services"][name]
            mounts = dict(reversed(mount.removesuffix(":ro").split(":")) for mount in service["volumes"])
            given = {key: str(value) for key, value in service["environment"].items()}
            given["DRIFTLINE_BOOTSTRAP"] = bootstrap
            given["DRIFTLINE_PREFIX"] = prefix
            given["DRIFTLINE_CONFIG"] = str(REPOSITORY / mounts[given["DRIFTLINE_CONFIG"]])
            given["DRIFTLINE_ROOT"] = str(folder / "data")
            given["DRIFTLINE_STREAMS__STATE_DIR"] = str(folder / f"state-{name}")
            command = service["command"]
            assert command[0] == "driftline"
            here = [sys.executable, "-m", "driftline.cli", *command[1:]]
            roles[name] = Role(name, here, {**clean, **given}, folder / f"{name}.log")
        yield roles, {**clean, "DRIFTLINE_BOOTSTRAP": bootstrap, "DRIFTLINE_PREFIX": prefix}
    finally:
        for role in roles.values():
            if role.process.poll() is None:
                role.process.kill()
                role.process.wait()


def rows(root: Path, sql: str) -> list[Any]:
    """Rows of the tables; none while there are no tables."""
    from driftline.errors import BadData
    from driftline.storage.sql import query

    try:
        return query(root, sql).to_pylist()
    except BadData:
        return []


def wait_for(what: str, condition: Callable[[], bool], roles: dict[str, Role], *, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not condition():
        for role in roles.values():
            assert role.process.poll() is None, f"{role.name} ended:\n{role.log.read_text()[-3000:]}"
        if time.monotonic() > until:
            logs = "\n".join(f"== {name}\n{role.log.read_text()[-1500:]}" for name, role in roles.items())
            pytest.fail(f"{what}: not within {seconds} s\n{logs}")
        time.sleep(0.5)


@pytest.mark.kafka
@pytest.mark.timeout(1200)  # it takes 40 s on two idle cores, but importing torch alone 50 s on busy ones
def test_what_the_file_starts_works_together_on_a_real_kafka(
    compose: dict[str, Any], kafka: Any, tmp_path: Path
) -> None:
    """Frames and checkpoints go in; samples, windows, evaluations are in the tables; SIGTERM ends all."""
    settings = kafka.settings()
    data = tmp_path / "data"
    with running(compose, settings.bootstrap, settings.prefix, tmp_path) as (roles, env):
        trainer = subprocess.run(
            [sys.executable, "-c", TRAINER, str(tmp_path / "checkpoints")],
            env=env,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            cwd=tmp_path,
        )
        assert trainer.returncode == 0, trainer.stderr
        count = "select count(*) as n from samples where metric in ('loss', 'accuracy')"
        wait_for(
            "200 samples in Parquet",
            lambda: [row["n"] for row in rows(data, count)] == [200],
            roles,
            seconds=300,
        )
        done = "select step from evals where status = 'done' order by step"
        wait_for(
            "evaluations of the first and the last checkpoint",
            lambda: sorted({row["step"] for row in rows(data, done)}) == [50, 100],
            roles,
            seconds=300,
        )
        wait_for(
            "windows of the loss",
            lambda: bool(rows(data, "select 1 from windows where metric = 'loss' limit 1")),
            roles,
            seconds=300,
        )
        codes = {name: role.stop(signal.SIGTERM) for name, role in roles.items()}
        logs = {name: role.log.read_text() for name, role in roles.items()}
        assert codes == dict.fromkeys(ROLES, 0), logs
        assert not [name for name, log in logs.items() if "Traceback" in log], logs
    assert [row["n"] for row in rows(data, count)] == [200]
