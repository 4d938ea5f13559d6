"""The settings file as people write it: one struct per block, one line of text per key.

What stands here is the whole list of keys: :mod:`driftline.settings_read` checks a file against it,
:mod:`driftline.settings_docs` writes ``docs/settings.md`` from it, and every key is also an environment
variable. Values are kept in internal units (integer microseconds, bytes); defaults are those of
:mod:`driftline.settings` and :mod:`driftline.config`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from driftline.config import DEFAULT_WINDOWS, DetectorKind, PipelineConfig, SchedulerConfig, WindowSpec
from driftline.connection import KafkaSettings
from driftline.events import Severity
from driftline.settings import (
    EvaluatorSettings,
    SdkSettings,
    StorageSettings,
    StreamsSettings,
    SystemMetric,
)
from driftline.units import duration_text

Form = Literal[
    "", "duration", "seconds", "size", "fraction", "count", "positive", "window", "flops", "threshold"
]
"""How a value is written, where its type does not say it."""


class Key(msgspec.Struct, frozen=True):
    """What a key means and how its value is written."""

    says: str
    form: Form = ""
    low: float = 0
    """Smallest value allowed, in internal units."""
    high: float | None = None
    """Largest value allowed, in internal units."""
    secret: bool = False
    """Its value is never shown."""
    not_yet: str = ""
    """Accepted and checked, but without effect so far: what will change that."""


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all blocks."""


_SDK, _STREAMS, _STORAGE = SdkSettings(), StreamsSettings(), StorageSettings()
_EVALUATOR, _PIPELINE, _SCHEDULER, _KAFKA = (
    EvaluatorSettings(),
    PipelineConfig(),
    SchedulerConfig(),
    KafkaSettings(),
)


class Metrics(Block, frozen=True, kw_only=True):
    """Which metrics there are. Written as a map, or as a list of maps."""

    system: Annotated[
        list[SystemMetric], Key("Groups of host readings that the SDK takes on local rank 0; [] takes none.")
    ] = msgspec.field(default_factory=lambda: list(_SDK.system))
    application: Annotated[
        list[str],
        Key(
            "Names that the training code logs. Everything logged is kept; those named here are shown first."
        ),
    ] = []
    custom: Annotated[list[str], Key("Further names that the training code logs, with the same effect.")] = []


class Storage(Block, frozen=True, kw_only=True):
    """Where the tables are and how long they are kept."""

    type: Annotated[Literal["timeseries"], Key("The only kind: Delta tables of Parquet files.")] = (
        "timeseries"
    )
    root: Annotated[
        str,
        Key(
            "Folder of the tables, relative to where the command is started, or s3://bucket/prefix (endpoint "
            "and credentials from the environment: AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, ...)."
        ),
    ] = _STORAGE.root
    retention: Annotated[
        int | None,
        Key(
            "Samples, the log and evaluated items older than this are deleted, by the sink, every hour; "
            "windows, alerts, evaluations and facts stay. Absent: everything is kept.",
            "duration",
            low=60_000_000,
        ),
    ] = _STORAGE.retention_us
    commit: Annotated[
        int, Key("Rows wait at most so long before they are committed.", "duration", low=10_000)
    ] = _STORAGE.commit_us
    commit_rows: Annotated[int, Key("Rows of a commit, at most.", low=1, high=50_000_000)] = (
        _STORAGE.commit_rows
    )
    catalog: Annotated[int, Key("catalog.duckdb is renewed at most this often.", "duration", low=100_000)] = (
        _STORAGE.catalog_us
    )
    session_timeout: Annotated[
        int,
        Key(
            "A sink that was silent for so long loses its partitions to the other sinks. Apache Kafka "
            "refuses less than 6s.",
            "duration",
            low=6_000_000,
        ),
    ] = _STORAGE.session_timeout_us


class Window(Block, frozen=True, kw_only=True):
    """Windows [k*every, k*every + size) that slide on one axis."""

    axis: Annotated[Literal["time", "step"], Key("Event time, or training steps.")]
    size: Annotated[
        int | str,
        Key(
            'Length: a duration ("10s") on the time axis, a number of steps on the other; `run` is the whole '
            "run so far, put out each time `every` has passed.",
            "window",
        ),
    ]
    every: Annotated[
        int | str | None,
        Key("A new window begins so often; `size` is a whole multiple of it. Absent: `size`.", "window"),
    ] = None


def _window(spec: WindowSpec) -> Window:
    if spec.axis == "step":
        return Window(axis="step", size=spec.size, every=spec.every)
    return Window(axis="time", size=duration_text(spec.size), every=duration_text(spec.every))


class Mfu(Block, frozen=True, kw_only=True):
    """Model FLOPs utilization: tokens in a second * `flops_per_token` / (`peak_flops` * devices)."""

    tokens: Annotated[str, Key("Metric whose sum over all ranks is the tokens that were trained on.")] = (
        "tokens"
    )
    flops_per_token: Annotated[
        float, Key('Of forward and backward pass, about 6 * parameters: 42e9, "42 GFLOP".', "flops")
    ]
    peak_flops: Annotated[float, Key('Of one device, in a second: "989 TFLOPS".', "flops")]
    devices: Annotated[
        int | None, Key("Devices of the run. Absent: the world size that it announces.", low=1)
    ] = None


class DerivedEntry(Block, frozen=True, kw_only=True):
    """A metric made of others in the stream; one of `rate`, `ratio`, `mfu`, `ema` and `spread` says how."""

    name: Annotated[str, Key("Its name in windows, rules and detectors; short names become long ones.")]
    rate: Annotated[str | None, Key("Sum of this metric in a second of the time axis.")] = None
    ratio: Annotated[
        list[str] | None, Key("Sum of the first metric divided by the sum of the second: [loss_sum, tokens].")
    ] = None
    mfu: Annotated[Mfu | None, Key("Model FLOPs utilization, 0 to 1.")] = None
    ema: Annotated[str | None, Key("Exponential moving average of this metric.")] = None
    half_life: Annotated[
        int | str | None,
        Key('Of an `ema`: after so long a value counts half: "30s" or "50 steps".', "window"),
    ] = None
    spread: Annotated[
        str | None,
        Key("Difference between ranks: the largest mean of a rank minus the median of all ranks'."),
    ] = None
    times: Annotated[float | None, Key("A rate or ratio is multiplied by it.", "positive")] = None
    over: Annotated[float | None, Key("A rate or ratio is divided by it.", "positive")] = None


class AggregateEntry(Block, frozen=True, kw_only=True):
    """A custom aggregate: a class whose values are put into the column `extra` of `windows`."""

    name: Annotated[str | None, Key("Key in the column. Absent: the attribute or short name.")] = None
    target: Annotated[
        str,
        Key(
            "geometric_mean, trimmed_mean, an entry point of the group driftline.aggregates, or "
            "module:attribute; every stream worker must have it."
        ),
    ]
    metrics: Annotated[list[str], Key("Metrics, logged or derived, that get it.")]
    version: Annotated[
        str, Key("Must equal the class's `version`, if it has one: raise both when results change.")
    ] = "1"
    settings: Annotated[
        dict[str, Any], Key("Keywords for the class, e.g. {part: 0.2} for trimmed_mean.")
    ] = {}


class RuleEntry(Block, frozen=True, kw_only=True):
    """A threshold of your own."""

    when: Annotated[
        str,
        Key(
            '`METRIC OP VALUE [for DURATION or for N steps]`, e.g. "gpu_utilization > 95 for 30s"; a name '
            "with odd characters in quotes."
        ),
    ]
    severity: Annotated[Severity, Key("How bad it is.")] = "warn"
    name: Annotated[str | None, Key("Name in the alerts. Absent: the text of `when`.")] = None
    per_rank: Annotated[bool, Key("Compare each rank by itself; false compares the mean over ranks.")] = True


class Alerting(Block, frozen=True, kw_only=True):
    """User thresholds; detectors have a block of their own."""

    thresholds: Annotated[
        dict[str, Any],
        Key(
            'Metric name to bound: 95%, 500ms, 0.9, or with a comparison and a time: "> 95% for 30s". '
            "Without a comparison the alert opens above it, or below where more is better "
            "(see the table of metric names).",
            "threshold",
        ),
    ] = {}
    rules: Annotated[list[RuleEntry], Key("Thresholds with severity and duration.")] = []


class Every(Block, frozen=True, kw_only=True):
    """How often a checkpoint is evaluated; any that is due picks the next checkpoint."""

    epochs: Annotated[float | None, Key("Every so many epochs.", "positive")] = None
    steps: Annotated[int | None, Key("Every so many training steps.", low=1)] = None
    seconds: Annotated[
        int | None, Key('Every so many seconds, or a duration ("10m").', "seconds", low=1_000_000)
    ] = None


class Suite(Block, frozen=True, kw_only=True):
    """One evaluation suite. Text alone ("package.module:attribute") is a suite with defaults."""

    name: Annotated[str | None, Key("Name in the results. Absent: the attribute or entry point.")] = None
    target: Annotated[str, Key("Entry point of the group driftline.suites, or module:attribute.")]
    version: Annotated[
        str, Key("Raise it when data or code of the suite changed; each is evaluated once.")
    ] = "1"
    settings: Annotated[dict[str, Any], Key("Passed to the suite, e.g. the number of items.")] = {}


class Evaluation(Block, frozen=True, kw_only=True):
    """When checkpoints are evaluated, and with what."""

    suites: Annotated[list[Suite], Key("Suites; each is run on every checkpoint that is picked.")] = []
    every: Annotated[Every, Key("How often.")] = Every()
    at_start: Annotated[bool, Key("Evaluate the first checkpoint too.")] = False
    at_end: Annotated[bool, Key("Evaluate the last checkpoint when the run ends.")] = True
    adaptive: Annotated[
        bool,
        Key(
            "Evaluate more often while results move, less on a plateau.",
            not_yet="the fixed frequencies of `every` are used",
        ),
    ] = False
    budget: Annotated[
        float | None,
        Key(
            "Part of training time that evaluation may take, at most: 0.15 or 15%.",
            "fraction",
            not_yet="no evaluation is held back for its cost",
        ),
    ] = None


class Kafka(Block, frozen=True, kw_only=True):
    """The broker."""

    bootstrap: Annotated[str, Key("host:port of a broker, several joined by commas.")] = _KAFKA.bootstrap
    prefix: Annotated[str, Key("Begins every topic name.")] = _KAFKA.prefix
    partitions: Annotated[
        int, Key("Partitions of the topics keyed by run; fixed when the topics are made.", low=1, high=10_000)
    ] = _KAFKA.partitions
    replication: Annotated[
        int, Key("Copies of each partition, when driftline makes the topics.", low=1, high=100)
    ] = _KAFKA.replication
    security_protocol: Annotated[
        Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"], Key("As every Kafka client names it.")
    ] = _KAFKA.security_protocol
    sasl_mechanism: Annotated[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None, Key("How to log in, with a SASL protocol.")
    ] = None
    sasl_username: Annotated[str | None, Key("User name.")] = None
    sasl_password: Annotated[
        str | None, Key("Password; better from the environment or a file.", secret=True)
    ] = None
    sasl_password_file: Annotated[str | None, Key("File that holds the password.")] = None
    ssl_cafile: Annotated[str | None, Key("Certificates to trust, PEM.")] = None
    ssl_certfile: Annotated[str | None, Key("Certificate of this client, PEM.")] = None
    ssl_keyfile: Annotated[str | None, Key("Key of this client, PEM.")] = None
    ssl_key_password: Annotated[
        str | None,
        Key("Password of a locked key; better from the environment or a file.", secret=True),
    ] = None
    ssl_key_password_file: Annotated[str | None, Key("File that holds the password of the key.")] = None


class Sdk(Block, frozen=True, kw_only=True):
    """What runs inside the trainer."""

    flush: Annotated[
        int,
        Key(
            "A sample waits at most so long before its frame is sent.", "duration", low=1_000, high=60_000_000
        ),
    ] = _SDK.flush_us
    frame_samples: Annotated[
        int, Key("A frame is sent when it holds so many samples.", low=1, high=30_000)
    ] = _SDK.frame_samples
    queue_samples: Annotated[
        int,
        Key("Samples waiting to become frames; more are dropped and counted.", low=1_000, high=100_000_000),
    ] = _SDK.queue_samples
    buffer: Annotated[
        int,
        Key(
            "Encoded frames waiting for the broker, in memory; from half of it on they go to the spool.",
            "size",
            low=1 << 20,
        ),
    ] = _SDK.buffer_bytes
    spool: Annotated[
        str | None,
        Key(
            "Folder, on a disk that outlives the process, for what waits while the broker is away. Absent: "
            "`driftline/spool` in `$XDG_STATE_HOME`, else in `~/.local/state`."
        ),
    ] = _SDK.spool
    spool_bytes: Annotated[
        int,
        Key(
            "What one process may keep there; beyond it and the buffer the newest are dropped and counted. "
            "0: nothing is spooled.",
            "size",
        ),
    ] = _SDK.spool_bytes
    spool_reserve: Annotated[int, Key("Free space that spools leave on that file system.", "size")] = (
        _SDK.spool_reserve_bytes
    )
    exit_wait: Annotated[
        int,
        Key("The longest that the end of the process waits for the broker.", "duration", high=3_600_000_000),
    ] = _SDK.exit_us
    heartbeat: Annotated[
        int, Key("A process with nothing to log says so this often.", "duration", low=100_000)
    ] = _SDK.heartbeat_us
    protect_space: Annotated[
        int,
        Key(
            "Announced checkpoints are kept (hard links beside them) when the trainer removes them, up to "
            "this size in each folder of checkpoints; 0 keeps none.",
            "size",
        ),
    ] = _SDK.protect_bytes
    protect_count: Annotated[
        int, Key("At most so many are kept in each folder of checkpoints: the newest.", high=10_000)
    ] = _SDK.protect_count
    protect_age: Annotated[int, Key("None is kept for longer.", "duration")] = _SDK.protect_age_us


class Streams(Block, frozen=True, kw_only=True):
    """The stream workers: windows, detectors, triggers."""

    allowed_lateness: Annotated[
        int | None,
        Key(
            "How late a sample may come and still enter its window. Absent: the larger of 2s and twice "
            "`sdk.flush`.",
            "duration",
        ),
    ] = None
    idle: Annotated[
        int,
        Key(
            "A process that was silent for so long no longer holds the windows open.",
            "duration",
            low=1_000_000,
        ),
    ] = _PIPELINE.idle_us
    future_skew: Annotated[
        int,
        Key("A sample dated further ahead than this closes no window; it is kept and flagged.", "duration"),
    ] = _PIPELINE.future_skew_us
    expire: Annotated[
        int, Key("State of a run is dropped after so long without a record.", "duration", low=60_000_000)
    ] = _PIPELINE.expire_us
    hole: Annotated[
        int,
        Key(
            "A gap in the ticks longer than this is a time in which nobody watched.",
            "duration",
            low=2_000_000,
        ),
    ] = _PIPELINE.hole_us
    start_grace: Annotated[
        int, Key("A rank that never started stops counting as expected after this.", "duration")
    ] = _PIPELINE.start_grace_us
    per_rank: Annotated[list[str], Key("Metrics that also get windows per rank.")] = []
    per_host: Annotated[list[str], Key("Metrics that also get windows per host.")] = []
    per_role: Annotated[list[str], Key("Metrics that also get windows per role.")] = []
    quantiles: Annotated[
        dict[str, list[float]], Key("Further quantiles (0 to 1) by metric name: {latency: [0.9, 0.999]}.")
    ] = {}
    weighted_quantiles: Annotated[
        dict[str, list[float]],
        Key("The same by weight, as `wp50` in the column `quantiles`: {loss: [0.5, 0.9]}."),
    ] = {}
    state_dir: Annotated[
        str | None,
        Key("Working folder of Faust, may be lost at any time. Absent: .streams under storage.root."),
    ] = None
    snapshot: Annotated[int, Key("How often the state is saved to Kafka.", "duration", low=100_000)] = (
        _STREAMS.snapshot_us
    )
    tick: Annotated[
        int, Key("How often time is written to the log.", "duration", low=100_000, high=60_000_000)
    ] = _STREAMS.tick_us
    batch_records: Annotated[
        int, Key("Records that are processed together, at most.", low=1, high=100_000)
    ] = _STREAMS.batch_records
    batch_wait: Annotated[
        int, Key("The longest that a record waits for others.", "duration", high=10_000_000)
    ] = _STREAMS.batch_wait_us
    session_timeout: Annotated[
        int,
        Key(
            "A worker that was silent for so long loses its partitions. Apache Kafka refuses less than 6s.",
            "duration",
            low=1_000_000,
            high=1_800_000_000,
        ),
    ] = _STREAMS.session_timeout_us


class Evaluator(Block, frozen=True, kw_only=True):
    """The evaluators."""

    device: Annotated[str, Key("auto, cpu, cuda, or one device: cuda:1.")] = _EVALUATOR.device
    threads: Annotated[
        int | None, Key("CPU threads for torch. Absent: torch's choice.", low=1, high=4096)
    ] = _EVALUATOR.threads
    wait: Annotated[int, Key("The longest to wait for a checkpoint to be whole.", "duration")] = (
        _EVALUATOR.wait_us
    )
    poll: Annotated[
        int, Key("How often it looks again at a checkpoint that is not whole.", "duration", low=10_000)
    ] = _EVALUATOR.poll_us
    announce: Annotated[int, Key("How often an evaluator says that it lives.", "duration", low=100_000)] = (
        _EVALUATOR.announce_us
    )
    stall: Annotated[
        int,
        Key(
            "An evaluation without a sign of life from its own code for so long no longer renews its lease.",
            "duration",
            low=1_000_000,
        ),
    ] = _EVALUATOR.stall_us
    nice: Annotated[
        int,
        Key("Added to the process's niceness, so that training on the same host goes first.", low=0, high=19),
    ] = _EVALUATOR.nice


class Scheduler(Block, frozen=True, kw_only=True):
    """Who evaluates what."""

    lease: Annotated[int, Key("A lease without progress ends after this.", "duration", low=1_000_000)] = (
        _SCHEDULER.lease_us
    )
    present: Annotated[
        int, Key("An evaluator that was not heard of for so long is gone.", "duration", low=1_000_000)
    ] = _SCHEDULER.present_us
    retries: Annotated[int, Key("Further tries after a failed, incomplete or lost one.", low=0, high=100)] = (
        _SCHEDULER.retries
    )
    starve: Annotated[int, Key("A request older than this goes before newer ones.", "duration")] = (
        _SCHEDULER.starve_us
    )


class Detector(Block, frozen=True, kw_only=True):
    """Changes the detector of that name, or adds one."""

    kind: Annotated[DetectorKind, Key("What it looks for.")]
    name: Annotated[str | None, Key("Name in the alerts. Absent: the kind, with dashes.")] = None
    enabled: Annotated[bool, Key("False removes the detector.")] = True
    metrics: Annotated[list[str] | None, Key("Metrics to watch. Absent: the detector's own choice.")] = None
    severity: Annotated[Severity | None, Key("How bad it is. Absent: that of the kind.")] = None
    params: Annotated[dict[str, float], Key("The detector's own settings; see the table of detectors.")] = {}


class File(Block, frozen=True, kw_only=True):
    """The whole file. Every key may also stand inside a `monitoring:` block; the two are merged."""

    enabled: Annotated[bool, Key("False: the SDK does nothing in the trainer.")] = True
    collection_frequency: Annotated[
        int, Key("How often host readings are taken.", "duration", low=10_000, high=3_600_000_000)
    ] = _SDK.collect_us
    metrics: Annotated[Metrics, Key("Which metrics there are.")] = Metrics()
    storage: Annotated[Storage, Key("Tables and retention.")] = Storage()
    alerting: Annotated[Alerting, Key("User thresholds.")] = Alerting()
    windows: Annotated[list[Window], Key("Sliding windows; replaces the default ones.")] = msgspec.field(
        default_factory=lambda: [_window(spec) for spec in DEFAULT_WINDOWS]
    )
    derived: Annotated[
        list[DerivedEntry], Key("Metrics made of others; each of logged ones or of those before it.")
    ] = []
    aggregates: Annotated[
        list[AggregateEntry], Key("Custom aggregates of metrics, for the column `extra` of windows.")
    ] = []
    evaluation: Annotated[Evaluation, Key("When checkpoints are evaluated, and with what.")] = Evaluation()
    detectors: Annotated[list[Detector], Key("Changes to the built-in detectors.")] = []
    kafka: Annotated[Kafka, Key("The broker.")] = Kafka()
    sdk: Annotated[Sdk, Key("What runs inside the trainer.")] = Sdk()
    streams: Annotated[Streams, Key("The stream workers.")] = Streams()
    scheduler: Annotated[Scheduler, Key("Who evaluates what.")] = Scheduler()
    evaluator: Annotated[Evaluator, Key("The evaluators.")] = Evaluator()


WRAPPER = "monitoring"
"""The block whose keys are merged with those at the top."""
SHORT_NAMES = {
    "DRIFTLINE_BOOTSTRAP": "kafka.bootstrap",
    "DRIFTLINE_PREFIX": "kafka.prefix",
    "DRIFTLINE_ROOT": "storage.root",
}
"""Short environment variables for the keys that differ most often."""
