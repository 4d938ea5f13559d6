"""Case 15: forks, spawned workers, loaders. Each process that logs is one of its own; nothing is lost."""

from __future__ import annotations

import copy
import math
import os
import pickle
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from driftline import events, frames, records
from driftline.admin import ensure_topics
from driftline.connection import KafkaSettings, kafka_python
from driftline.producers.disk import FileDisk
from driftline.producers.survey import survey
from driftline.topics import partition_of

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")

HEAD = """
import multiprocessing, os, signal, sys, threading, time
import driftline
from driftline.connection import KafkaSettings
from driftline.producers.transport import MemoryTransport
from driftline.settings import SdkSettings, Settings

class FileTransport(MemoryTransport):
    def send(self, seq, payload):
        super().send(seq, payload)
        with open(sys.argv[1], "ab", buffering=0) as file:
            file.write(len(payload).to_bytes(4, "big") + payload)

def start(transport=True, **sdk):
    sdk = {"system": (), "exit_us": 40_000_000, "flush_us": 20_000, "heartbeat_us": 60_000_000} | sdk
    kafka = KafkaSettings(bootstrap=sys.argv[2], prefix=sys.argv[3], partitions=4)
    settings = Settings(sdk=SdkSettings(**sdk), kafka=kafka)
    way = FileTransport() if transport else None
    return driftline.init("x", run_id="r", settings=settings, transport=way)

def ten(run, name):
    for step in range(10):
        run.log({name: float(step)}, step=step)

def join(*processes):
    for process in processes:
        process.join(150)
    return [process.exitcode for process in processes]
"""


class Done(NamedTuple):
    """What a program left behind."""

    code: int
    stderr: str
    stdout: str
    records: list[Any]

    def samples(self) -> Counter[tuple[str, int]]:
        """How often each (name, step) arrived."""
        return Counter(
            (frame.names[number], step)
            for frame in self.records
            if isinstance(frame, frames.Frame)
            for number, step in zip(frame.metric.tolist(), frame.step.tolist(), strict=True)
        )

    def processes(self, name: str) -> set[str]:
        """Who sent samples of this name."""
        return {one.process for one in self.records if isinstance(one, frames.Frame) and name in one.names}

    def started(self) -> list[events.ProcessStarted]:
        return [record for record in self.records if isinstance(record, events.ProcessStarted)]

    def check(self, *names: str) -> None:
        """Ten samples of each name, once each; each process has its own gapless numbers; a clean exit."""
        assert self.code == 0, self.stderr
        assert self.samples() == {(name, step): 1 for name in names for step in range(10)}
        for started in self.started():
            numbers = [record.seq for record in self.records if record.process == started.process]
            assert numbers == list(range(len(numbers)))
        assert len({started.process for started in self.started()}) == len(self.started())
        assert "Exception ignored" not in self.stderr
        assert "Traceback" not in self.stderr


def program(tmp_path: Path, code: str, *, bootstrap: str = "127.0.0.1:1", prefix: str = "x.") -> Done:
    file, log = tmp_path / "program.py", tmp_path / "log"
    file.write_text(HEAD + code)
    done = subprocess.run(
        [sys.executable, str(file), str(log), bootstrap, prefix], capture_output=True, text=True, timeout=170
    )
    data, found = log.read_bytes() if log.exists() else b"", []
    while data:
        size = int.from_bytes(data[:4], "big")
        found.append(records.decode(data[4 : 4 + size]))
        data = data[4 + size :]
    return Done(done.returncode, done.stderr, done.stdout, found)


FORKS = """
if __name__ == "__main__":
    run = start()
    ten(run, "before")
    def work(name):
        ten(run, name)
        if name == "two":  # a fork of a fork, by the system call
            child = os.fork()
            if not child:
                ten(run, "nested")
                sys.exit(0)
            os.waitpid(child, 0)
    child = os.fork()
    if not child:
        ten(run, "forked")
        sys.exit(3)  # runs the hooks of atexit
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=work, args=(name,)) for name in ("one", "two")]
    for worker in workers: worker.start()
    ten(run, "parent")
    quiet = context.Process(target=lambda: None)
    quiet.start()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert join(*workers, quiet) == [0, 0, 0]
    ten(run, "after")
"""


def test_forked_children_are_processes_of_their_own(tmp_path: Path) -> None:
    """Two workers, a fork of one of them, a bare os.fork, one that logs nothing: 70 samples, once each."""
    done = program(tmp_path, FORKS)
    done.check("before", "one", "two", "nested", "parent", "forked", "after")
    parent, *children = sorted(done.started(), key=lambda each: (each.parent is not None, each.pid))
    assert parent.parent is None
    assert len(children) == 4, "the one that logged nothing does not show"
    nested, two = done.processes("nested"), done.processes("two")
    assert {child.parent for child in children if child.process in nested} == two
    assert {child.parent for child in children if child.process not in nested} == {parent.process}
    assert len({child.pid for child in children} | {parent.pid}) == 5
    ends = [record for record in done.records if isinstance(record, events.ProcessEnded)]
    assert {end.process for end in ends} == {each.process for each in done.started()}
    assert {end.outcome for end in ends if end.process in nested | two} == {"finished"}


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_run_that_is_sent_to_a_spawned_worker_joins_there(tmp_path: Path, method: str) -> None:
    """Also several times to the workers of a pool, which is one process of the run each, not one per task."""
    done = program(
        tmp_path,
        f"""
from concurrent.futures import ProcessPoolExecutor

def work(run, name):
    ten(run, name)
    return run.process, os.getpid()

if __name__ == "__main__":
    run = start()
    context = multiprocessing.get_context({method!r})
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        found = [pool.submit(work, run, name).result(60) for name in ("one", "two")]
    assert len(set(found)) == 1 and found[0][0] != run.process, found
    ten(run, "parent")
""",
    )
    done.check("one", "two", "parent")
    parent, child = sorted(done.started(), key=lambda each: each.parent is not None)
    assert (child.parent, child.run, child.config) == (parent.process, "r", {})


LOADER = """
import torch
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __init__(self, run, epoch):
        self.run, self.epoch = run, epoch
    def __len__(self):
        return 20
    def __getitem__(self, at):
        worker = torch.utils.data.get_worker_info().id
        self.run.log({f"{self.epoch}/worker{worker}": 1.0}, step=at // 2)
        return at

if __name__ == "__main__":
    run = start()
    for epoch, (method, stay) in enumerate((("fork", False), ("fork", True), ("spawn", False))):
        workers = 1 if method == "spawn" else 2
        data = DataLoader(Data(run, epoch), num_workers=workers, multiprocessing_context=method,
                          persistent_workers=stay, sampler=range(0, 20, 3 - workers), batch_size=1)
        assert len(list(data)) == 10 * workers
        del data
        ten(run, f"{epoch}/parent")
"""


def test_workers_of_a_loader_deliver(tmp_path: Path) -> None:
    """Forked, forked to stay (2 workers each), spawned (1): 10 samples of each worker and of the parent."""
    done = program(tmp_path, LOADER)
    everyone = ("worker0", "worker1", "parent")
    done.check(
        *(f"{epoch}/{who}" for epoch in range(3) for who in everyone if (epoch, who) != (2, "worker1"))
    )
    parent = next(started.process for started in done.started() if started.parent is None)
    assert [started.parent for started in done.started() if started.parent] == [parent] * 5


def test_a_handler_of_c_code_stays(tmp_path: Path) -> None:
    """Torch gives its workers one that hides the end of the loader; Python does not know of it."""
    done = program(
        tmp_path,
        """
import ctypes, subprocess
run = start()
signal.signal(signal.SIGTERM, signal.SIG_DFL)
libc = ctypes.CDLL(None)
libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
ours = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: None)
libc.signal(signal.SIGTERM, ctypes.cast(ours, ctypes.c_void_p))
from driftline.producers import exits
exits.watch(run)
assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
libc.signal(signal.SIGTERM, None)
exits.watch(run)
assert signal.getsignal(signal.SIGTERM) is exits._on_sigterm
ten(run, "a")
""",
    )
    done.check("a")


def test_however_a_child_ends_its_parent_goes_on(tmp_path: Path) -> None:
    """SIGTERM, an exception, finish() and leaving the run's block in the child: the parent's run is open."""
    done = program(
        tmp_path,
        """
if __name__ == "__main__":
    run = start()
    def waits():
        ten(run, "sigterm")
        time.sleep(60)
    def fails():
        ten(run, "exception")
        raise ValueError("mine")
    def finishes():
        with run:
            ten(run, "finish")
        run.log({"late": 1.0})
        assert run.counters()["dropped_finished"] == 1
    def unheard():
        run.finish()
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=work) for work in (waits, fails, finishes, unheard)]
    for worker in workers: worker.start()
    while b"sigterm" not in open(sys.argv[1], "rb").read(): time.sleep(0.01)
    workers[0].terminate()
    print(join(*workers))
    ten(run, "parent")
    assert run.flush(60)
""",
    )
    assert done.stdout.strip() == "[-15, 1, 0, 0]"
    assert "ValueError: mine" in done.stderr
    done._replace(stderr="").check("sigterm", "exception", "finish", "parent")
    name = {r.process: r.names[0] for r in done.records if isinstance(r, frames.Frame)}
    ends = {name[r.process]: r.outcome for r in done.records if isinstance(r, events.ProcessEnded)}
    assert ends == {"sigterm": "signal", "exception": "exception", "finish": "finished", "parent": "finished"}
    assert isinstance(done.records[-1], events.ProcessEnded)


def test_a_fork_while_the_sdks_threads_hold_locks_or_import(tmp_path: Path) -> None:
    """The child inherits every lock as it was; none of those that it needs may be a dead thread's."""
    (tmp_path / "slow.py").write_text(
        "import logging, time\ntime.sleep(0.5)\nlogging.getLogger(__name__)\nready = True\n"
    )
    done = program(
        tmp_path,
        """
from driftline.producers import forks
sys.path.insert(0, os.path.dirname(__file__))

def importer():
    with forks.importing():
        begun.set()
        import slow

def holder():
    with run._counters._lock, run._waking:
        run._worker.bell._lock.acquire(timeout=1)
        held.set()
        gate.wait(60)

def flusher():
    while not gate.is_set(): run.flush(1)

if __name__ == "__main__":
    run = start()
    begun, held, gate = threading.Event(), threading.Event(), threading.Event()
    def work(name):
        import slow
        assert slow.ready
        ten(run, name)
        assert run.flush(60)
    threads = [threading.Thread(target=target) for target in (importer, holder, flusher)]
    for thread in threads: thread.start()
    begun.wait(60), held.wait(60)
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=work, args=(name,)) for name in ("one", "two")]
    for worker in workers: worker.start()
    assert join(*workers) == [0, 0]
    gate.set()
    for thread in threads: thread.join(60)
    ten(run, "parent")
""",
    )
    done.check("one", "two", "parent")


def test_a_fork_that_could_not_wait_for_an_import_imports_anew(tmp_path: Path) -> None:
    """A client on a cold file system takes longer than a fork waits: the child forgets what was half made."""
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "__init__.py").write_text("from slow import part, late\nready = part.ready\n")
    (tmp_path / "slow" / "part.py").write_text("ready = True\n")
    (tmp_path / "slow" / "late.py").write_text("import time\ntime.sleep(3)\n")
    done = program(
        tmp_path,
        """
from driftline.producers import forks
sys.path.insert(0, os.path.dirname(__file__))
forks.IMPORT_WAIT_S = 0.2

def importer():
    with forks.importing():
        import slow

def work(run, name):
    sys.modules["time"].sleep = lambda seconds: None
    if name == "thread":
        found = []
        thread = threading.Thread(target=lambda: found.append(__import__("slow").ready))
        thread.start(), thread.join(60)
        assert found == [True], found
    import slow
    assert slow.ready and slow.part.ready
    ten(run, name)

if __name__ == "__main__":
    run = start()
    assert run.flush(60)
    thread = threading.Thread(target=importer)
    thread.start()
    while "slow.late" not in sys.modules: time.sleep(0.01)
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=work, args=(run, name)) for name in ("main", "thread")]
    for worker in workers: worker.start()
    assert thread.is_alive()
    assert join(*workers) == [0, 0]
    thread.join(60)
    ten(run, "parent")
""",
    )
    done.check("main", "thread", "parent")


def test_a_client_that_is_imported_for_longer_than_there_is_time_to_end(tmp_path: Path) -> None:
    """Nothing is lost in silence, in the process and in a child that is forked right after init."""
    done = program(
        tmp_path,
        """
class Cold:
    def find_spec(self, name, path, target=None):
        if name == "kafka": time.sleep(10)

def law(run):
    run.finish()
    counts = run.counters()
    assert counts == counts | {"samples_logged": 10, "samples_spooled": 10}, counts
    return True

def work(run):
    ten(run, "child")
    assert law(run)

if __name__ == "__main__":
    import socket
    server = socket.create_server(("127.0.0.1", 0))
    sys.argv[2] = f"127.0.0.1:{server.getsockname()[1]}"
    sys.meta_path.insert(0, Cold())
    run = start(transport=False, exit_us=1_000_000, spool=os.path.dirname(__file__) + "/spool")
    ten(run, "parent")
    worker = multiprocessing.get_context("fork").Process(target=work, args=(run,))
    worker.start()
    assert law(run)
    assert join(worker) == [0]
""",
    )
    assert done.code == 0, done.stderr
    assert done.stderr.count("10 wait in") == 2
    assert sum(standing.samples for standing in survey(FileDisk(tmp_path / "spool"))) == 20


def test_a_child_without_a_broker_ends_in_half_the_time(tmp_path: Path) -> None:
    """A loader kills workers that take five seconds; the default for a process is five."""
    done = program(
        tmp_path,
        """
run = start(transport=False, exit_us=2_000_000)
worker = multiprocessing.get_context("fork").Process(target=ten, args=(run, "one"))
begun = time.monotonic()
worker.start()
assert join(worker) == [0]
print(time.monotonic() - begun)
""",
    )
    assert done.code == 0, done.stderr
    assert 0.5 < float(done.stdout) < 10
    assert "10 of 10 samples" in done.stderr


def test_init_in_a_forked_child_is_no_restart_of_its_rank(tmp_path: Path) -> None:
    done = program(
        tmp_path,
        """
if __name__ == "__main__":
    run = start()
    worker = multiprocessing.get_context("fork").Process(target=lambda: ten(start(), "one"))
    worker.start()
    assert join(worker) == [0]
    ten(run, "parent")
""",
    )
    done.check("one", "parent")
    parent, child = sorted(done.started(), key=lambda each: each.parent is not None)
    assert child.parent == parent.process


def test_a_pickled_run_has_no_password_and_a_copy_is_the_run(sdk: Callable[..., Any]) -> None:
    kafka = KafkaSettings(
        sasl_mechanism="PLAIN", sasl_username="u", sasl_password="hidden-word", ssl_key_password="hidden-word"
    )
    under_test = sdk(init={"kafka": kafka})
    data = pickle.dumps(under_test.run)
    assert b"hidden-word" not in data
    assert pickle.loads(data) is under_test.run
    assert copy.deepcopy({"run": under_test.run})["run"] is under_test.run
    under_test.run.finish()
    closed = pickle.loads(pickle.dumps(under_test.run))
    closed.log({"a": 1.0, "b": math.nan})
    assert closed.counters() == {"dropped_finished": 2}


@pytest.mark.kafka
def test_forked_and_spawned_workers_of_a_run_on_kafka(tmp_path: Path, kafka: Any) -> None:
    """Case 15 with a producer that is connected when the forks happen, and one that is not yet."""
    settings = kafka.settings()
    ensure_topics(settings)
    code = """
def work(run, name): ten(run, name)

if __name__ == "__main__":
    run = start(transport=False, exit_us=120_000_000)
    def go(method, name):
        worker = multiprocessing.get_context(method).Process(target=work, args=(run, name))
        worker.start()
        return worker
    early = go("fork", "early")
    ten(run, "before")
    assert run.flush(60)
    workers = [go("fork", "one"), go("fork", "two"), go("spawn", "three")]
    ten(run, "parent")
    assert join(early, *workers) == [0, 0, 0, 0]
"""
    done = program(tmp_path, code, bootstrap=settings.bootstrap, prefix=settings.prefix)
    assert done.code == 0, done.stderr
    done._replace(records=_read(settings, 5)).check("early", "before", "one", "two", "three", "parent")


def _read(settings: KafkaSettings, ends: int) -> list[Any]:
    """All records of run "r" until so many processes ended."""
    from kafka import KafkaConsumer, TopicPartition

    place = TopicPartition(settings.topics["telemetry"], partition_of("r", settings.partitions))
    consumer = KafkaConsumer(**kafka_python(settings), auto_offset_reset="earliest", enable_auto_commit=False)
    consumer.assign([place])
    consumer.seek_to_beginning(place)
    found: list[Any] = []
    until = time.monotonic() + 120
    while sum(isinstance(record, events.ProcessEnded) for record in found) < ends:
        if time.monotonic() > until:
            raise TimeoutError(f"not all of {ends} processes are heard of: {found}")
        for messages in consumer.poll(timeout_ms=200).values():
            found += [records.decode(message.value) for message in messages]
    consumer.close()
    return found
