"""All settings of every role, as one typed tree with defaults; durations are integer microseconds here.

:func:`load` makes it of the YAML file, the environment and the defaults.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from driftline.config import PipelineConfig, SchedulerConfig
from driftline.connection import KafkaSettings

DEFAULT_FILE = "driftline.yaml"
SystemMetric = Literal["cpu", "memory", "gpu", "network", "disk"]


class SdkSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What runs inside the trainer."""

    enabled: bool = True
    """False: every call of the SDK does nothing."""
    flush_us: int = 200_000
    """A sample waits at most so long before its frame is sent."""
    frame_samples: int = 2_000
    """A frame is sent when it holds so many samples."""
    queue_samples: int = 1_000_000
    """Samples waiting to become frames; more are dropped and counted."""
    buffer_bytes: int = 64 * 1024 * 1024
    """Encoded frames waiting for the broker, in memory."""
    spool: str | None = None
    """Folder for what waits while the broker is away; None: the user's (:mod:`driftline.producers.disk`)."""
    spool_bytes: int = 1 << 30
    """What a process may keep there; beyond it and the buffer new samples are dropped. 0: no spool."""
    spool_reserve_bytes: int = 1 << 30
    """Free space that stays on that file system."""
    exit_us: int = 5_000_000
    """The longest that ``finish`` and the end of the process wait for the broker."""
    heartbeat_us: int = 5_000_000
    """A process with nothing to log says so this often."""
    protect_bytes: int = 100 * 1024**3
    """Checkpoints kept from the trainer's rotation, in each folder of checkpoints; 0 protects none."""
    protect_count: int = 20
    """So many of them at most: the newest."""
    protect_age_us: int = 24 * 3_600_000_000
    """None that is older."""
    collect_us: int = 1_000_000
    """How often host readings are taken."""
    system: tuple[SystemMetric, ...] = ("cpu", "memory", "gpu", "network", "disk")
    """Host readings to take (on local rank 0)."""


class StreamsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The stream workers."""

    state_dir: str = "./driftline-data/.streams"
    """Working folder of Faust; may be lost at any time."""
    snapshot_us: int = 3_000_000
    tick_us: int = 1_000_000
    batch_records: int = 500
    batch_wait_us: int = 20_000
    session_timeout_us: int = 10_000_000


class StorageSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The sink and the tables."""

    root: str = "./driftline-data"
    """Folder of the tables, or an address in an object store."""
    retention_us: int | None = None
    """Samples, log and evaluated items older than this are deleted; the other tables stay."""
    commit_us: int = 2_000_000
    """Rows wait at most so long before they are committed."""
    commit_rows: int = 500_000
    catalog_us: int = 3_000_000
    """``catalog.duckdb`` is renewed at most this often."""
    session_timeout_us: int = 10_000_000
    """A sink that was silent for so long loses its partitions to the others."""


class EvaluatorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The evaluators."""

    device: str = "auto"
    """One of "auto", "cpu", "cuda", "cuda:1"."""
    threads: int | None = None
    """CPU threads for torch; None leaves torch's choice."""
    wait_us: int = 60_000_000
    """The longest to wait for a checkpoint to be whole."""
    poll_us: int = 500_000
    """How often to look while waiting."""
    announce_us: int = 2_000_000
    """How often an evaluator says that it lives, and renews its lease."""
    stall_us: int = 600_000_000
    """An evaluation without a sign of life from its own code for so long no longer renews its lease."""
    nice: int = 5
    """Added to the process's niceness (0 to 19), so that training on the same host goes first."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything."""

    kafka: KafkaSettings = KafkaSettings()
    sdk: SdkSettings = SdkSettings()
    streams: StreamsSettings = StreamsSettings()
    storage: StorageSettings = StorageSettings()
    evaluator: EvaluatorSettings = EvaluatorSettings()
    pipeline: PipelineConfig = msgspec.field(default_factory=PipelineConfig)
    scheduler: SchedulerConfig = SchedulerConfig()
    metrics: tuple[str, ...] = ()
    """Names that the file declares as application or custom metrics, in its order."""
    notes: tuple[str, ...] = ()
    """What the file asks for that is not in effect yet, one line each; every role says it once at start."""
    source: str = ""
    """The file that was read, empty without one."""


def load(path: str | Path | None = None, env: Mapping[str, str] | None = None) -> Settings:
    """The settings of a YAML file, changed by ``DRIFTLINE_*`` environment variables.

    Without ``path``: the file that ``DRIFTLINE_CONFIG`` names, else ``./driftline.yaml`` if there is one,
    else the defaults. ``env`` is the environment to read, by default the process's own.

    Raises:
        SettingsError: an unknown key, a wrong type or a value that is not usable; names key, value, remedy.
    """
    from driftline import settings_build, settings_file, settings_read

    env = os.environ if env is None else env
    file = find(path, env)
    tree = settings_file.read(file, env)
    settings = settings_build.build(settings_read.check(tree), tree.where)
    return msgspec.structs.replace(settings, source=str(file) if file else "")


def find(path: str | Path | None, env: Mapping[str, str]) -> Path | None:
    """The settings file to read; None for the defaults. What is named must exist, which reading it checks."""
    if path is not None:
        return Path(path)
    if env.get("DRIFTLINE_CONFIG"):
        return Path(env["DRIFTLINE_CONFIG"])
    return Path(DEFAULT_FILE) if Path(DEFAULT_FILE).is_file() else None
