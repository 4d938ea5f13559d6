"""Apache Kafka in one JVM, for tests and benchmarks where no Docker engine answers.

The jars come from Maven once into ``.cache/`` of the checkout. KRaft mode, one node, loopback only.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parents[2]
VERSION = "4.3.1"
JARS = ROOT / ".cache" / f"kafka-{VERSION}"
START_SECONDS = 90


class CannotStart(RuntimeError):
    """No Kafka can be started here; the message says why."""


def free_port() -> int:
    """A TCP port on loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def jars() -> Path:
    """The folder of Kafka's jars, fetched by Maven at the first call. Raises CannotStart."""
    if (JARS / "complete").exists():
        return JARS
    if not shutil.which("mvn") or not shutil.which("java"):
        raise CannotStart("neither a Docker engine nor Java with Maven is here")
    JARS.mkdir(parents=True, exist_ok=True)
    pom = Path(__file__).with_name("kafka") / "pom.xml"
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={JARS}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotStart(f"Maven could not fetch Kafka's jars: {(done.stdout + done.stderr)[-800:]}")
    (JARS / "complete").touch()
    return JARS


class JvmKafka:
    """A broker with its own folder and ports; ``with JvmKafka() as kafka: kafka.bootstrap``.

    ``stop``/``start`` keep data and port, so that outages can be tested; ``kill`` is SIGKILL.
    """

    def __init__(self, *, heap: str = "768m", quick_start: bool = True, overrides: str = "") -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="driftline-kafka-"))
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._heap = heap
        self._quick_start = quick_start
        self._classpath = str(jars() / "*")
        self._properties = self.folder / "server.properties"
        controller = free_port()
        self._properties.write_text(
            f"""
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{self.port}
controller.listener.names=CONTROLLER
log.dirs={self.folder}/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=4194304
{overrides}
"""
        )
        self._java(
            "kafka.tools.StorageTool", "format", "-t", "RHJpZnRsaW5lLXRlc3RzMA", "-c", self._properties
        )

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts the broker and waits until it accepts connections. Raises CannotStart."""
        command = [*self._command("kafka.Kafka"), str(self._properties)]
        with (self.folder / "kafka.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise CannotStart(f"Kafka ended: {self.log()}")
            if self._answers():
                return
            time.sleep(0.1)
        raise CannotStart(f"Kafka did not start in {START_SECONDS} s: {self.log()}")

    def stop(self) -> None:
        """Ends the broker in order; data and port stay."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def log(self) -> str:
        """The end of the broker's log."""
        return (self.folder / "kafka.log").read_text(errors="replace")[-2000:]

    def __enter__(self) -> JvmKafka:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the broker and removes its data."""
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

    def _java(self, main: str, *arguments: object) -> None:
        command = [*self._command(main), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
        if done.returncode:
            raise CannotStart(f"{main} failed: {(done.stdout + done.stderr)[-800:]}")
