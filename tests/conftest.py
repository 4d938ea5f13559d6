"""Brokers for tests: the embedded one, and a real Apache Kafka.

The real one is, in this order: ``DRIFTLINE_TEST_BOOTSTRAP``; testcontainers where a Docker engine answers; a
JVM where Java and Maven are. Else the test is skipped with the reason, unless ``DRIFTLINE_REQUIRE_KAFKA`` is
set (CI), where it fails.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import msgspec
import pytest

from driftline.broker import EmbeddedBroker
from driftline.connection import KafkaSettings

# Random tests look for new faults wherever people work; whether a change lands must not depend on luck.
# How long an example takes says nothing on a busy machine.
hypothesis.settings.register_profile(
    "people", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("people")
hypothesis.settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    hypothesis.settings.load_profile("ci")

# What tests spool goes to a folder of their own, never to that of the person who runs them.
_STATE = tempfile.TemporaryDirectory(prefix="driftline-tests-")
os.environ["XDG_STATE_HOME"] = _STATE.name

# A shell starts what it puts in the background with SIGINT ignored, and children would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SUPPORT = Path(__file__).parent / "support"
_PREFIXES = itertools.count()


class Broker:
    """A broker that tests share; each test takes settings with topic names of its own."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def settings(self, **changes: Any) -> KafkaSettings:
        """Settings with a prefix that no other test uses."""
        fresh = {"bootstrap": self.bootstrap, "prefix": f"t{os.getpid()}-{next(_PREFIXES)}.", "partitions": 4}
        return msgspec.structs.replace(KafkaSettings(), **(fresh | changes))


def load_support(name: str) -> ModuleType:
    """A module of tests/support."""
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, SUPPORT / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def support() -> Callable[[str], ModuleType]:
    """A module of tests/support by its name."""
    return load_support


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Makes a folder in which Driftline's parts run as processes; all of them end with the test."""
    made: list[Any] = []

    def make(settings: dict[str, Any], **environ: str) -> Any:
        made.append(load_support("parts").Parts(tmp_path / f"parts-{len(made)}", settings, environ))
        return made[-1]

    yield make
    for each in made:
        each.close()
        print(each.told())


@pytest.fixture(scope="session")
def embedded() -> Iterator[Broker]:
    """The embedded broker, one for all tests of the session."""
    with EmbeddedBroker() as broker:
        yield Broker(broker.bootstrap)


@pytest.fixture(scope="session")
def kafka() -> Iterator[Broker]:
    """A real Apache Kafka, one for all tests of the session; do not kill it (see ``jvm_kafka``)."""
    if bootstrap := os.environ.get("DRIFTLINE_TEST_BOOTSTRAP"):
        yield Broker(bootstrap)
        return
    if _docker_answers():
        from testcontainers.kafka import KafkaContainer

        with KafkaContainer("apache/kafka:4.3.1") as container:
            yield Broker(container.get_bootstrap_server())
        return
    support = load_support("jvm_kafka")
    try:
        broker = support.JvmKafka()
        broker.start()
    except support.CannotStart as error:
        _no_kafka(str(error))
    with contextlib.closing(broker):
        yield Broker(broker.bootstrap)


@pytest.fixture
def jvm_kafka() -> Iterator[Any]:
    """A real Apache Kafka of the test's own, to be stopped, started and killed at will."""
    support = load_support("jvm_kafka")
    try:
        broker = support.JvmKafka()
        broker.start()
    except support.CannotStart as error:
        _no_kafka(str(error))
    with contextlib.closing(broker):
        yield broker


@pytest.fixture
def kafka_cluster() -> Iterator[Any]:
    """Three brokers of the test's own, three copies of each partition of which two must take a record; give
    ``replication=3`` to KafkaSettings."""
    support = load_support("jvm_kafka")
    try:
        cluster = support.JvmCluster()
    except support.CannotStart as error:
        _no_kafka(str(error))
    with contextlib.closing(cluster):
        try:
            cluster.start()
        except support.CannotStart as error:
            _no_kafka(str(error))
        yield cluster


@pytest.fixture(scope="session")
def secure_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A real Apache Kafka behind TLS and passwords, one for all tests of the session."""
    support = load_support("jvm_kafka")
    try:
        broker = load_support("secure_kafka").SecureKafka(tmp_path_factory.mktemp("certificates"), support)
    except (support.CannotStart, FileNotFoundError) as error:  # no Java, no openssl
        _no_kafka(str(error))
    with contextlib.closing(broker):
        yield broker


def _no_kafka(reason: str) -> None:
    if os.environ.get("DRIFTLINE_REQUIRE_KAFKA"):
        pytest.fail(f"a real Kafka is required here: {reason}")
    pytest.skip(f"no Apache Kafka: {reason}")


def _docker_answers() -> bool:
    try:
        return (
            subprocess.run(["docker", "info"], capture_output=True, timeout=10, check=False).returncode == 0
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
