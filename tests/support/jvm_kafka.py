"""Apache Kafka in one JVM, or a cluster of them, for tests and benchmarks where no Docker engine answers.

The jars come from Maven once into ``.cache/`` of the checkout. KRaft mode, loopback only, every node is
broker and controller. ``overrides`` are further lines of ``server.properties``; they win over ours.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]
VERSION = "4.3.1"
JARS = ROOT / ".cache" / f"kafka-{VERSION}"
START_SECONDS = 180
CLUSTER = "RHJpZnRsaW5lLXRlc3RzMA"
_FORMATTING = threading.Lock()
_bootstrap_records: bytes | None = None
"""What a formatted node begins its metadata with: feature levels, the same for every node."""


class CannotStart(RuntimeError):
    """No Kafka can be started here; the message says why."""


def free_port() -> int:
    """A TCP port on loopback that was free a moment ago, below those that the kernel gives to connections.

    One of those could be taken by any client while the broker is away: even by the client that tries to reach
    it, which then talks to itself and keeps the broker from its port.
    """
    while True:
        port = random.randrange(11_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def jars() -> Path:
    """The folder of Kafka's jars, fetched by Maven at the first call. Raises CannotStart."""
    if not shutil.which("java"):
        raise CannotStart("neither a Docker engine nor Java with Maven is here")
    JARS.mkdir(parents=True, exist_ok=True)
    with (JARS / "lock").open("w") as lock:  # test processes ask at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (JARS / "complete").exists():
            _fetch()
    return JARS


def _fetch() -> None:
    if not shutil.which("mvn"):
        raise CannotStart("neither a Docker engine nor Java with Maven is here")
    pom = Path(__file__).with_name("kafka") / "pom.xml"
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={JARS}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotStart(f"Maven could not fetch Kafka's jars: {(done.stdout + done.stderr)[-800:]}")
    (JARS / "complete").touch()


class JvmNode:
    """One JVM with its own folder and port, broker and controller at once.

    ``stop``/``start`` keep data and port, so that outages can be tested; ``kill`` is SIGKILL, ``pause`` and
    ``resume`` are SIGSTOP and SIGCONT. ``voters`` are the controllers of all nodes, this one's included.
    ``overrides`` are further lines of its properties, with ``{port}`` and ``{controller}`` for its two ports.
    """

    def __init__(
        self,
        *,
        node: int,
        voters: dict[int, int],
        replication: int,
        heap: str,
        quick_start: bool,
        overrides: str,
    ) -> None:
        self.node = node
        self.folder = Path(tempfile.mkdtemp(prefix="driftline-kafka-"))
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._heap = heap
        self._quick_start = quick_start
        self._classpath = str(jars() / "*")
        self._properties = self.folder / "server.properties"
        quorum = ",".join(f"{number}@127.0.0.1:{port}" for number, port in voters.items())
        self._properties.write_text(
            f"""
process.roles=broker,controller
node.id={node}
controller.quorum.voters={quorum}
listeners=PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{voters[node]}
advertised.listeners=PLAINTEXT://127.0.0.1:{self.port}
controller.listener.names=CONTROLLER
log.dirs={self.folder}/data
auto.create.topics.enable=false
default.replication.factor={replication}
min.insync.replicas={replication // 2 + 1}
offsets.topic.replication.factor={replication}
offsets.topic.num.partitions=4
transaction.state.log.replication.factor={replication}
transaction.state.log.min.isr={replication // 2 + 1}
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=4194304
{overrides.format(port=self.port, controller=voters[node])}
"""
        )
        self._format()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def runs(self) -> bool:
        """Whether its process is there (it may be paused)."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Starts the node and waits until it accepts connections. Raises CannotStart."""
        self.launch()
        self.wait()

    def launch(self) -> None:
        """Starts the node and does not wait."""
        command = [*self._command("kafka.Kafka"), str(self._properties)]
        with (self.folder / "kafka.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)

    def wait(self) -> None:
        """Until a launched node accepts connections. Raises CannotStart."""
        assert self.process is not None, "launched before"
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise CannotStart(f"Kafka ended: {self.log()}")
            if self._answers():
                return
            time.sleep(0.1)
        raise CannotStart(f"Kafka did not start in {START_SECONDS} s: {self.log()}")

    def stop(self) -> None:
        """Ends the node in order; data and port stay."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Freezes it: connections stay open and nothing answers."""
        assert self.process is not None, "started before"
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None, "started before"
        self.process.send_signal(signal.SIGCONT)

    def log(self) -> str:
        """The end of the broker's log."""
        return (self.folder / "kafka.log").read_text(errors="replace")[-2000:]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the node and removes its data."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, how: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(how)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process = None
        (self.folder / "kafka.log").unlink(missing_ok=True)

    def _answers(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _command(self, main: str) -> list[str]:
        quick = ["-XX:TieredStopAtLevel=1"] if self._quick_start else []
        heap = [f"-Xmx{self._heap}", f"-Xms{self._heap}", "-XX:+UseSerialGC", *quick]
        return ["java", *heap, f"-Dkafka.logs.dir={self.folder}", "-cp", self._classpath, main]

    def _format(self) -> None:
        """As StorageTool does, which is a JVM of its own: it runs once, for what every node gets."""
        global _bootstrap_records
        data = self.folder / "data"
        with _FORMATTING:
            if _bootstrap_records is None:
                self._java("kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", self._properties)
                _bootstrap_records = (data / "bootstrap.checkpoint").read_bytes()
                return
        data.mkdir()
        (data / "bootstrap.checkpoint").write_bytes(_bootstrap_records)
        directory = base64.urlsafe_b64encode(b"driftline" + random.randbytes(7)).decode().rstrip("=")
        (data / "meta.properties").write_text(
            f"version=1\ncluster.id={CLUSTER}\nnode.id={self.node}\ndirectory.id={directory}\n"
        )

    def _java(self, main: str, *arguments: object) -> None:
        command = [*self._command(main), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
        if done.returncode:
            raise CannotStart(f"{main} failed: {(done.stdout + done.stderr)[-800:]}")


class JvmKafka(JvmNode):
    """A broker by itself; ``with JvmKafka() as kafka: kafka.bootstrap``."""

    def __init__(self, *, heap: str = "768m", quick_start: bool = True, overrides: str = "") -> None:
        super().__init__(
            node=1,
            voters={1: free_port()},
            replication=1,
            heap=heap,
            quick_start=quick_start,
            overrides=overrides,
        )


class JvmCluster:
    """Brokers that copy for each other: ``with JvmCluster() as kafka: kafka.nodes[0].kill()``.

    Topics that are made without saying otherwise have ``replication`` copies, of which more than half must
    take a record. A lost broker is noticed after ``session_ms`` and its partitions go to the others. With
    more than half of the nodes away nothing is led until they are back. Heaps are small, so that three stand
    beside everything else on two cores.
    """

    def __init__(
        self,
        *,
        nodes: int = 3,
        replication: int = 3,
        heap: str = "320m",
        quick_start: bool = True,
        session_ms: int = 6_000,
        overrides: str = "",
    ) -> None:
        voters = {number: free_port() for number in range(1, nodes + 1)}
        timing = f"broker.session.timeout.ms={session_ms}\nbroker.heartbeat.interval.ms={session_ms // 6}"

        def make(number: int) -> JvmNode:
            return JvmNode(
                node=number,
                voters=voters,
                replication=replication,
                heap=heap,
                quick_start=quick_start,
                overrides=f"{timing}\n{overrides}",
            )

        with ThreadPoolExecutor(nodes) as pool:
            self.nodes: list[JvmNode] = list(pool.map(make, voters))

    @property
    def bootstrap(self) -> str:
        """All nodes, joined by commas."""
        return ",".join(node.bootstrap for node in self.nodes)

    def start(self) -> None:
        """Starts all nodes that do not run and waits until the cluster has them all. Raises CannotStart."""
        waiting = [node for node in self.nodes if not node.runs]
        for node in waiting:
            node.launch()
        for node in waiting:
            node.wait()
        self.until(lambda: len(self._brokers()) == len(self.nodes), "all brokers are in the cluster")

    def close(self) -> None:
        """Ends all nodes and removes their data."""
        for node in self.nodes:
            node.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- leaders ------------------------------------------------------------------------------------------

    def leaders(self, topic: str) -> dict[int, JvmNode | None]:
        """The node that leads each partition, None where none does. Some node must answer."""
        by_number = {node.node: node for node in self.nodes}
        with self._admin() as admin:
            (found,) = admin.describe_topics([topic])
        return {p["partition_index"]: by_number.get(p["leader_id"]) for p in found["partitions"]}

    def move_leaders(self, topics: Sequence[str]) -> None:
        """Gives every partition another leader, in order: its next copy becomes the preferred one."""
        from kafka import TopicPartition

        with self._admin() as admin:
            wanted = {
                TopicPartition(topic["name"], p["partition_index"]): [
                    *p["replica_nodes"][1:],
                    p["replica_nodes"][0],
                ]
                for topic in admin.describe_topics(list(topics))
                for p in topic["partitions"]
            }
            refused = {tp: why for tp, why in admin.alter_partition_reassignments(wanted).items() if why}
            assert not refused, f"reassignments refused: {refused}"
            by_topic: dict[str, list[int]] = {}
            for at in wanted:
                by_topic.setdefault(at.topic, []).append(at.partition)
            admin.elect_leaders(0, by_topic, raise_errors=False)
        self.until(lambda: self._led_by({tp: copies[0] for tp, copies in wanted.items()}), "leaders moved")

    def in_sync(self, topic: str) -> bool:
        """Whether every copy of every partition is in sync."""
        with self._admin() as admin:
            (found,) = admin.describe_topics([topic])
        return all(sorted(p["isr_nodes"]) == sorted(p["replica_nodes"]) for p in found["partitions"])

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Waits for something about the cluster, whose nodes may be busy coming up. Raises CannotStart."""
        from kafka.errors import KafkaError

        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                if condition():
                    return
            except KafkaError:
                pass
            if time.monotonic() > deadline:
                logs = "\n".join(node.log() for node in self.nodes)
                raise CannotStart(f"not within {START_SECONDS} s: {what}\n{logs}")
            time.sleep(0.2)

    def _led_by(self, wanted: dict[Any, int]) -> bool:
        """As whichever nodes answer see it, some times over: a node hears of new leaders a moment later."""
        for _ in self.nodes:
            with self._admin() as admin:
                found = admin.describe_topics(sorted({tp.topic for tp in wanted}))
            leads = {
                (t["name"], p["partition_index"]): p["leader_id"] for t in found for p in t["partitions"]
            }
            if any(leads[tp.topic, tp.partition] != number for tp, number in wanted.items()):
                return False
        return True

    def _brokers(self) -> list[Any]:
        with self._admin() as admin:
            found: list[Any] = admin.describe_cluster()["brokers"]
        return found

    @contextlib.contextmanager
    def _admin(self) -> Iterator[Any]:
        """A client of the nodes that run."""
        from kafka.admin import KafkaAdminClient

        up = [node.bootstrap for node in self.nodes if node.runs]
        admin = KafkaAdminClient(bootstrap_servers=up, request_timeout_ms=10_000, bootstrap_timeout_ms=5_000)
        try:
            yield admin
        finally:
            admin.close()
