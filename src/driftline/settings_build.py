"""From the checked file to :class:`~driftline.settings.Settings`: what depends on more than one key.

Raises SettingsError, naming the key as it was written, for windows whose size is no multiple of ``every``,
names that are used twice, detector parameters that do not exist, and Kafka settings that contradict each
other.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from driftline import detector_params, settings_derived, settings_rules, units
from driftline.config import (
    DEFAULT_DETECTORS,
    DetectorSpec,
    PipelineConfig,
    Rule,
    SchedulerConfig,
    Triggers,
    WindowSpec,
)
from driftline.connection import KafkaSettings, ssl_context
from driftline.errors import Refused, SettingsError
from driftline.events import SuiteRef
from driftline.frames import MAX_NAME_BYTES
from driftline.settings import EvaluatorSettings, SdkSettings, Settings, StorageSettings, StreamsSettings
from driftline.settings_derived import TARGET
from driftline.settings_read import fields
from driftline.settings_schema import Block, Detector, File, Kafka, Window

PANES_MAX = 10_000
WHOLE_RUN = "run"
"""The size of the window that grows with the run."""
STEPS_MAX = 1_000_000_000
"""The longest window on the step axis; its ends must fit 64 bits beside any step."""
_SERVER = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+):(\d{1,5})")
_PREFIX = re.compile(r"[a-zA-Z0-9._-]{0,200}")
_DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d+)?")

Where = Callable[[str], str]
"""From the path of a key to how the user wrote it."""


def build(file: File, where: Where) -> Settings:
    """The settings of every role."""
    root = file.storage.root
    return Settings(
        kafka=_kafka(file.kafka, where),
        sdk=_sdk(file),
        streams=StreamsSettings(
            state_dir=file.streams.state_dir or _state_dir(root),
            snapshot_us=file.streams.snapshot,
            tick_us=file.streams.tick,
            batch_records=file.streams.batch_records,
            batch_wait_us=file.streams.batch_wait,
            session_timeout_us=file.streams.session_timeout,
        ),
        storage=StorageSettings(
            root=root,
            retention_us=file.storage.retention,
            commit_us=file.storage.commit,
            commit_rows=file.storage.commit_rows,
            catalog_us=file.storage.catalog,
            session_timeout_us=file.storage.session_timeout,
        ),
        evaluator=_evaluator(file, where),
        pipeline=_pipeline(file, where),
        scheduler=SchedulerConfig(
            lease_us=file.scheduler.lease,
            present_us=file.scheduler.present,
            retries=file.scheduler.retries,
            starve_us=file.scheduler.starve,
            hole_us=file.streams.hole,
        ),
        metrics=_declared(file, where),
        notes=_notes(file, where),
    )


def _sdk(file: File) -> SdkSettings:
    return SdkSettings(
        enabled=file.enabled,
        flush_us=file.sdk.flush,
        frame_samples=file.sdk.frame_samples,
        queue_samples=file.sdk.queue_samples,
        buffer_bytes=file.sdk.buffer,
        spool=file.sdk.spool,
        spool_bytes=file.sdk.spool_bytes,
        spool_reserve_bytes=file.sdk.spool_reserve,
        exit_us=file.sdk.exit_wait,
        heartbeat_us=file.sdk.heartbeat,
        protect_bytes=file.sdk.protect_space,
        protect_count=file.sdk.protect_count,
        protect_age_us=file.sdk.protect_age,
        collect_us=file.collection_frequency,
        system=tuple(dict.fromkeys(file.metrics.system)),
    )


def _state_dir(root: str) -> str:
    return ".streams" if "://" in root else str(Path(root) / ".streams")


def _evaluator(file: File, where: Where) -> EvaluatorSettings:
    entry = file.evaluator
    if not _DEVICE.fullmatch(entry.device):
        raise SettingsError(where("evaluator.device"), entry.device, "write auto, cpu, cuda or cuda:N")
    return EvaluatorSettings(
        device=entry.device,
        threads=entry.threads,
        wait_us=entry.wait,
        poll_us=entry.poll,
        announce_us=entry.announce,
        stall_us=entry.stall,
        nice=entry.nice,
    )


def _kafka(entry: Kafka, where: Where) -> KafkaSettings:
    servers = [part.strip() for part in entry.bootstrap.split(",")]
    if not all((m := _SERVER.fullmatch(server)) and 0 < int(m[2]) < 65536 for server in servers):
        remedy = "write host:port, several joined by commas: kafka-1:9092,kafka-2:9092"
        shown = re.sub(r"[^/,\s]*@", "***@", entry.bootstrap)  # someone may have put a password there
        raise SettingsError(where("kafka.bootstrap"), shown, remedy)
    if not _PREFIX.fullmatch(entry.prefix) or entry.prefix in (".", ".."):
        remedy = "use letters, digits, '.', '_' and '-', at most 200"
        raise SettingsError(where("kafka.prefix"), entry.prefix, remedy)
    password = _secret(entry, "sasl_password", where)
    sasl = entry.security_protocol.startswith("SASL_")
    if sasl and not (entry.sasl_mechanism and entry.sasl_username and password):
        remedy = (
            "needs kafka.sasl_mechanism, kafka.sasl_username and kafka.sasl_password (or sasl_password_file)"
        )
        raise SettingsError(where("kafka.security_protocol"), entry.security_protocol, remedy)
    if entry.sasl_mechanism and not sasl:
        remedy = f"has no effect with {entry.security_protocol}: set security_protocol to SASL_SSL"
        raise SettingsError(where("kafka.sasl_mechanism"), entry.sasl_mechanism, remedy)
    found = KafkaSettings(
        bootstrap=",".join(servers),
        prefix=entry.prefix,
        partitions=entry.partitions,
        replication=entry.replication,
        security_protocol=entry.security_protocol,
        sasl_mechanism=entry.sasl_mechanism,
        sasl_username=entry.sasl_username,
        sasl_password=password,
        ssl_cafile=entry.ssl_cafile,
        ssl_certfile=entry.ssl_certfile,
        ssl_keyfile=entry.ssl_keyfile,
        ssl_key_password=_secret(entry, "ssl_key_password", where),
    )
    _check_certificates(found, where)
    return found


def _check_certificates(kafka: KafkaSettings, where: Where) -> None:
    """The Kafka client would only say, for ever, that no broker answers."""
    for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile"):
        file = getattr(kafka, name)
        try:
            if file is not None:
                Path(file).open("rb").close()
        except (OSError, ValueError) as error:
            raise SettingsError(where(f"kafka.{name}"), file, f"cannot be read: {error}") from None
    try:
        ssl_context(kafka)
    except Refused as error:
        raise SettingsError(where(error.key), error.value, error.remedy) from None


def _secret(entry: Kafka, name: str, where: Where) -> str | None:
    """A secret, or what the file that is named for it holds, without white space at its ends."""
    written, file = getattr(entry, name), getattr(entry, f"{name}_file")
    if file is None:
        return str(written) if written is not None else None
    key = where(f"kafka.{name}_file")
    if written is not None:
        raise SettingsError(key, file, f"kafka.{name} is written too: keep one of the two")
    try:
        found = Path(file).read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        raise SettingsError(key, file, f"cannot be read: {_without_content(error)}") from None
    if not found:
        raise SettingsError(key, file, "the file is empty: write the password into it")
    return found


def _without_content(error: Exception) -> str:
    """A decoding error quotes bytes of the file, which are the secret."""
    return "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)


def _pipeline(file: File, where: Where) -> PipelineConfig:
    streams = file.streams
    lateness = streams.allowed_lateness
    if lateness is None:
        lateness = max(2_000_000, 2 * file.sdk.flush)
    elif lateness < file.sdk.flush:
        remedy = f"write more than sdk.flush ({units.duration_text(file.sdk.flush)}), or every sample is late"
        raise SettingsError(where("streams.allowed_lateness"), units.duration_text(lateness), remedy)
    rules, detectors = _rules(file, where), _detectors(file.detectors, where)
    _unique(
        [rule.name for rule in rules] + [d.name for d in detectors],
        "alerting.rules",
        "rule or detector",
        where,
    )
    config = PipelineConfig(
        windows=_windows(file.windows, where),
        per_rank=streams.per_rank,
        per_host=streams.per_host,
        per_role=streams.per_role,
        quantiles=_quantiles(streams.quantiles, "quantiles", where),
        weighted_quantiles=_quantiles(streams.weighted_quantiles, "weighted_quantiles", where),
        aggregates=settings_derived.aggregates(file.aggregates, where),
        derived=settings_derived.derived(file.derived, where),
        rules=rules,
        detectors=detectors,
        triggers=Triggers(
            epochs=file.evaluation.every.epochs,
            steps=file.evaluation.every.steps,
            every_us=file.evaluation.every.seconds,
            at_start=file.evaluation.at_start,
            at_end=file.evaluation.at_end,
        ),
        suites=_suites(file, where),
        allowed_lateness_us=lateness,
        idle_us=streams.idle,
        future_skew_us=streams.future_skew,
        expire_us=streams.expire,
        hole_us=streams.hole,
        start_grace_us=streams.start_grace,
    )
    settings_derived.check(config, where)
    return config


def _windows(entries: list[Window], where: Where) -> list[WindowSpec]:
    specs: list[WindowSpec] = []
    for at, entry in enumerate(entries):
        key = f"windows[{at}]"
        if entry.size == WHOLE_RUN:
            if any(spec.axis == entry.axis and not spec.size for spec in specs):
                remedy = f"the {entry.axis} axis has a window of the whole run already: keep one"
                raise SettingsError(where(f"{key}.size"), entry.size, remedy)
            specs.append(_so_far(entry, where(f"{key}.every")))
            continue
        size = _length(entry.axis, entry.size, where(f"{key}.size"))
        every = size if entry.every is None else _length(entry.axis, entry.every, where(f"{key}.every"))
        if size % every:
            remedy = f"size is {entry.size}: it must be a whole multiple of every"
            raise SettingsError(where(f"{key}.every"), entry.every, remedy)
        if size // every > PANES_MAX:
            remedy = f"size is {size // every:,} times as long: write at least a {PANES_MAX:,}th of size"
            raise SettingsError(where(f"{key}.every"), entry.every, remedy)
        spec = WindowSpec(axis=entry.axis, size=size, every=every)
        if spec in specs:
            raise SettingsError(
                where(key), entry.size, f"is the same as windows[{specs.index(spec)}]: remove one"
            )
        specs.append(spec)
    return specs


def _so_far(entry: Window, key: str) -> WindowSpec:
    if entry.every is None:
        remedy = 'the whole run is put out every so often: write every: 100, or "10m" on the time axis'
        raise SettingsError(key, None, remedy)
    return WindowSpec(axis=entry.axis, size=0, every=_length(entry.axis, entry.every, key))


def _length(axis: str, value: int | str, key: str) -> int:
    try:
        if axis == "step":
            if isinstance(value, str):
                value = int(value.removesuffix("steps").removesuffix("step"))
            length = value
        else:
            length = units.duration_us(value)
    except ValueError as error:
        remedy = "write a number of steps: 50" if axis == "step" else f"on the time axis, {error}"
        raise SettingsError(key, value, remedy) from None
    if length < 1:
        raise SettingsError(key, value, "write something above 0")
    if axis == "step" and length > STEPS_MAX:
        raise SettingsError(key, value, f"write at most {STEPS_MAX:,} steps")
    return length


def _quantiles(entries: dict[str, list[float]], key: str, where: Where) -> dict[str, list[float]]:
    for metric, values in entries.items():
        for value in values:
            if not 0 < value < 1:
                raise SettingsError(where(f"streams.{key}.{metric}"), value, "write numbers between 0 and 1")
    return {metric: sorted(set(values)) for metric, values in entries.items()}


def _rules(file: File, where: Where) -> list[Rule]:
    rules = [
        settings_rules.threshold(name, value, key=where(f"alerting.thresholds.{name}"))
        for name, value in file.alerting.thresholds.items()
    ]
    for at, entry in enumerate(file.alerting.rules):
        found = settings_rules.condition(entry.when, key=where(f"alerting.rules[{at}].when"))
        named = settings_rules.rule(found, name=entry.name or entry.when.strip())
        rules.append(msgspec.structs.replace(named, severity=entry.severity, per_rank=entry.per_rank))
    return rules


def _detectors(entries: list[Detector], where: Where) -> list[DetectorSpec]:
    """The default ones, changed, removed or added to by name."""
    specs = {spec.name: spec for spec in DEFAULT_DETECTORS}
    severities = {spec.kind: spec.severity for spec in DEFAULT_DETECTORS}
    seen: set[str] = set()
    for at, entry in enumerate(entries):
        key = where(f"detectors[{at}]")
        name = entry.name or entry.kind.replace("_", "-")
        if name in seen:
            raise SettingsError(f"{key}.name", name, "is used twice: give each detector a name of its own")
        seen.add(name)
        if name in specs and specs[name].kind != entry.kind:
            raise SettingsError(
                f"{key}.name", name, f"is the built-in {specs[name].kind}: choose another name"
            )
        detector_params.check(entry.kind, entry.params, f"{key}.params")
        specs[name] = DetectorSpec(
            name=name,
            kind=entry.kind,
            metrics=entry.metrics or [],
            severity=entry.severity or severities[entry.kind],
            params=entry.params,
        )
        if not entry.enabled:
            del specs[name]
    return list(specs.values())


def _suites(file: File, where: Where) -> list[SuiteRef]:
    suites = []
    for at, entry in enumerate(file.evaluation.suites):
        key = f"evaluation.suites[{at}]"
        if not TARGET.fullmatch(entry.target):
            remedy = "write package.module:attribute, or the name of an entry point"
            raise SettingsError(where(f"{key}.target"), entry.target, remedy)
        name = entry.name or entry.target.rpartition(":")[2]
        suites.append(
            SuiteRef(name=name, target=entry.target, version=entry.version, settings=entry.settings)
        )
    _unique([suite.name for suite in suites], "evaluation.suites", "suite", where)
    return suites


def _unique(names: list[str], key: str, what: str, where: Where) -> None:
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(
                where(key), name, f"more than one {what} has this name: give each its own `name`"
            )


def _declared(file: File, where: Where) -> tuple[str, ...]:
    for kind in ("application", "custom"):
        for name in getattr(file.metrics, kind):
            if len(name.encode()) > MAX_NAME_BYTES:
                raise SettingsError(
                    where(f"metrics.{kind}"), name[:40] + "...", f"at most {MAX_NAME_BYTES} bytes"
                )
    return tuple(dict.fromkeys([*file.metrics.application, *file.metrics.custom]))


def _notes(file: File, where: Where) -> tuple[str, ...]:
    """What is accepted without effect so far, one line each."""
    notes = [
        f"{where(f'{block}.{name}')} is accepted but not in effect yet: {field.key.not_yet}"
        for block in fields(File)
        if isinstance(values := getattr(file, block), Block)
        for name, field in fields(type(values)).items()
        if field.key.not_yet and getattr(values, name) != field.default
    ]
    if file.evaluation.suites == [] and file.evaluation.every != type(file.evaluation.every)():
        notes.append(f"{where('evaluation.every')} has no effect without evaluation.suites")
    return tuple(notes)
