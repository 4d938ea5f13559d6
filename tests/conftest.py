"""How tests are given to processes, and the brokers they use: the embedded one, and a real Apache Kafka.

The real one is, in this order: ``DRIFTLINE_TEST_BOOTSTRAP``; testcontainers where a Docker engine answers; a
JVM where Java and Maven are. Else the test is skipped with the reason, unless ``DRIFTLINE_REQUIRE_KAFKA`` is
set (CI), where it fails. All processes of a session share one.

With pytest-xdist (``pytest -n 3 --dist loadfile``) a process gets a file at a time, the longest first, as
``durations.json`` says; of the files in ``ONE_BY_ONE`` a test at a time. ``--shuffle SEED`` gives any order.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
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
_ANY_TIME: dict[str, Any] = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("people", **_ANY_TIME)
hypothesis.settings.register_profile("ci", derandomize=True, **_ANY_TIME)
hypothesis.settings.register_profile("long", max_examples=5_000, **_ANY_TIME)
hypothesis.settings.load_profile(
    os.environ.get("DRIFTLINE_TEST_PROFILE", "ci" if os.environ.get("CI") else "people")
)

# What tests spool goes to a folder of their own, never to that of the person who runs them.
_STATE = tempfile.TemporaryDirectory(prefix="driftline-tests-")
os.environ["XDG_STATE_HOME"] = _STATE.name

# A shell starts what it puts in the background with SIGINT ignored, and children would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

HERE = Path(__file__).parent
SUPPORT = HERE / "support"
ONE_BY_ONE = frozenset(
    {
        "tests/security/test_end_to_end.py",
        "tests/shell/test_exactly_once.py",
        "tests/shell/test_odd_logs.py",
        "tests/sim/test_planted_bugs.py",
        "tests/sim/test_simulation.py",
        "tests/storage/test_object_repair.py",
        "tests/storage/test_repair.py",
        "tests/storage/test_several_sinks.py",
        "tests/storage/test_sink.py",
    }
)
"""Files of long tests that share no fixture: spread over processes test by test."""
SECONDS_UNKNOWN = 1.0
_PREFIXES = itertools.count()
_SHARED = pytest.StashKey[Path]()
_BROKERS = pytest.StashKey[list[Any]]()


class Broker:
    """A broker that tests share; each test takes settings with topic names of its own."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def settings(self, **changes: Any) -> KafkaSettings:
        """Settings with a prefix that no other test uses."""
        fresh = {"bootstrap": self.bootstrap, "prefix": f"t{os.getpid()}-{next(_PREFIXES)}.", "partitions": 4}
        return msgspec.structs.replace(KafkaSettings(), **(fresh | changes))


SessionBroker = Callable[[str], contextlib.AbstractContextManager[Broker]]


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


# --- the processes of a session -----------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run files in a random order")


def pytest_configure(config: pytest.Config) -> None:
    """The folder that the session's processes share; the process that starts them brings up the brokers."""
    worker = getattr(config, "workerinput", None)
    config.stash[_SHARED] = Path(
        worker["shared"] if worker else tempfile.mkdtemp(prefix="driftline-session-")
    )
    if worker is None and config.getoption("numprocesses", None):
        config.stash[_BROKERS] = [
            load_support("shared").BrokerOnDemand(config.stash[_SHARED], name, start)
            for name, start in BROKERS.items()
        ]


def pytest_unconfigure(config: pytest.Config) -> None:
    for broker in config.stash.get(_BROKERS, []):
        broker.close()
    if not hasattr(config, "workerinput"):
        shutil.rmtree(config.stash[_SHARED], ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["shared"] = str(node.config.stash[_SHARED])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files, or tests of ``ONE_BY_ONE``, in the order in which they are collected."""
    from xdist.scheduler import LoadScopeScheduling

    class InOrder(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _unit(nodeid)

    config.option.loadscopereorder = False
    return InOrder(config, log)


def _unit(nodeid: str) -> str:
    """What one process gets at a time."""
    file = nodeid.partition("::")[0]
    return nodeid if file in ONE_BY_ONE else file


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several processes: what takes longest comes first, so that none is left with it at the end."""
    seed = config.getoption("--shuffle")
    order: dict[str, float] = {}
    if seed is not None:
        units = list(dict.fromkeys(_unit(item.nodeid) for item in items))
        random.Random(seed).shuffle(units)
        order = {unit: at for at, unit in enumerate(units)}
    elif hasattr(config, "workerinput"):
        durations = json.loads((HERE / "durations.json").read_text())
        order = {name: -seconds for name, seconds in durations.items()}
    else:
        return
    items.sort(key=lambda item: order.get(_unit(item.nodeid), -SECONDS_UNKNOWN))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What was left out here, a line for each reason."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"left out here: {count} {'test' if count == 1 else 'tests'}, {reason}")


@pytest.fixture(scope="session")
def shared(pytestconfig: pytest.Config) -> Path:
    """A folder that all processes of the session share, for what one of them makes."""
    return pytestconfig.stash[_SHARED]


@pytest.fixture(scope="session")
def made_once(shared: Path) -> Callable[[str, Callable[[Path], None]], Path]:
    """``made_once(name, make)``: a folder that ``make`` fills in one process, for all to read."""
    return lambda name, make: load_support("shared").made_once(shared, name, make)


# --- brokers and parts --------------------------------------------------------------------------------------


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
def embedded(session_broker: SessionBroker) -> Iterator[Broker]:
    """The embedded broker, one for all tests of the session; do not stop it."""
    with session_broker("embedded") as broker:
        yield broker


@pytest.fixture(scope="session")
def kafka(session_broker: SessionBroker) -> Iterator[Broker]:
    """A real Apache Kafka, one for all tests of the session; do not kill it (see ``jvm_kafka``)."""
    with contextlib.ExitStack() as stack:
        try:
            broker = stack.enter_context(session_broker("kafka"))
        except RuntimeError as error:
            _no_kafka(str(error))
        yield broker


@pytest.fixture(scope="session")
def session_broker(shared: Path, pytestconfig: pytest.Config) -> SessionBroker:
    """A broker of ``BROKERS``, which the processes of the session share."""

    @contextlib.contextmanager
    def broker(name: str) -> Iterator[Broker]:
        if hasattr(pytestconfig, "workerinput"):
            yield Broker(load_support("shared").ask_for_broker(shared, name))
        else:
            with BROKERS[name]() as bootstrap:
                yield Broker(bootstrap)

    return broker


@contextlib.contextmanager
def _embedded_broker() -> Iterator[str]:
    with EmbeddedBroker() as broker:
        yield broker.bootstrap


@contextlib.contextmanager
def _real_kafka() -> Iterator[str]:
    """The address of a Kafka that runs as long as the context. Raises CannotStart."""
    if bootstrap := os.environ.get("DRIFTLINE_TEST_BOOTSTRAP"):
        yield bootstrap
    elif _docker_answers():
        from testcontainers.kafka import KafkaContainer

        with KafkaContainer("apache/kafka:4.3.1") as container:
            yield container.get_bootstrap_server()
    else:
        with load_support("jvm_kafka").JvmKafka() as broker:
            yield broker.bootstrap


BROKERS = {"embedded": _embedded_broker, "kafka": _real_kafka}


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
        support.jars()
        broker = load_support("secure_kafka").SecureKafka(tmp_path_factory.mktemp("certificates"), support)
    except support.CannotStart as error:
        _no_kafka(str(error))
    except FileNotFoundError:
        _no_kafka("the command openssl is not here")
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
