"""A wrong setting is an error that names the key as it was written, its value and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from driftline.errors import SettingsError
from driftline.settings import load

CASES = [
    ("storge: {root: x}", "storge", "did you mean 'storage'?"),
    ("storage: {retension: 7d}", "storage.retension", "did you mean 'retention'?"),
    ("storage: {zzz: 1}", "storage.zzz", "known here: type, root, retention"),
    ("monitoring: {storage: {retension: 7d}}", "monitoring.storage.retension", "did you mean 'retention'?"),
    ("monitoring: {enable: true}", "monitoring.enable", "did you mean 'enabled'?"),
    ("monitoring: [1]", "monitoring", "map of keys"),
    ("monitoring: {enabled: 5}", "monitoring.enabled", "true or false"),
    ("collection_frequency: 100", "collection_frequency", "with its unit"),
    ("collection_frequency: 1ms", "collection_frequency", "at least 10ms"),
    ("collection_frequency: soon", "collection_frequency", "100ms"),
    ("storage: {type: graph}", "storage.type", "write one of: timeseries"),
    ("storage: {retention: 7}", "storage.retention", "7d"),
    ("storage: {retention: 1s}", "storage.retention", "at least 1m"),
    ("storage: {root: 5}", "storage.root", "in quotes"),
    ("storage: {root: ''}", "storage.root", "some text"),
    ("storage: {root: null}", "storage.root", "text"),
    ("storage: [a]", "storage", "map of these keys"),
    ("storage: {commit_rows: 1.5}", "storage.commit_rows", "whole number"),
    ("storage: {commit_rows: true}", "storage.commit_rows", "whole number"),
    ("storage: {commit_rows: 0}", "storage.commit_rows", "at least 1"),
    ("metrics: [{system: [cpu, disc]}]", "metrics.system[1]", "did you mean 'disk'?"),
    ("metrics: [{sistem: [cpu]}]", "metrics.sistem", "did you mean 'system'?"),
    ("metrics: [cpu]", "metrics[0]", "- system"),
    ("metrics: [{system: cpu}]", "metrics[0].system", "write a list"),
    ("windows: [{axis: time, size: 10s, every: 3s}]", "windows[0].every", "whole multiple"),
    ("windows: [{axis: step, size: 10, every: 3}]", "windows[0].every", "whole multiple"),
    ("windows: [{axis: time, size: 50}]", "windows[0].size", "on the time axis"),
    ("windows: [{axis: step, size: run}]", "windows[0].every", "every: 100"),
    ("windows: [{axis: time, size: run, every: 100}]", "windows[0].every", "on the time axis"),
    (
        "windows: [{axis: step, size: run, every: 9}, {axis: step, size: run, every: 10}]",
        "windows[1].size",
        "keep one",
    ),
    ("windows: [{axis: step, size: 10s}]", "windows[0].size", "number of steps"),
    ("windows: [{axis: step, size: 0}]", "windows[0].size", "above 0"),
    ("windows: [{axis: space, size: 1}]", "windows[0].axis", "time, step"),
    ("windows: [{axis: step}]", "", "windows[0]: the key `size` is missing"),
    ("windows: [{axis: time, size: 7d, every: 1ms}]", "windows[0].every", "10,000th"),
    ("windows: [{axis: step, size: 5}, {axis: step, size: 5, every: 5}]", "windows[1]", "same as windows[0]"),
    ("windows: {axis: step}", "windows", "write a list"),
    ("alerting: {rules: [{when: loss is high}]}", "alerting.rules[0].when", "METRIC OP VALUE"),
    (
        "alerting: {rules: [{when: 'loss > 5 for ever'}]}",
        "alerting.rules[0].when",
        "duration or a number of steps",
    ),
    ("alerting: {rules: [{when: 'loss > 5 for 0 steps'}]}", "alerting.rules[0].when", "number of steps"),
    ("alerting: {rules: [{when: 'loss > nan'}]}", "alerting.rules[0].when", "nan"),
    ("alerting: {rules: [{when: 'loss > 5ms'}]}", "alerting.rules[0].when", "not a time"),
    ("alerting: {rules: [{when: 'mine > 5%'}]}", "alerting.rules[0].when", "percentage of mine"),
    ("alerting: {rules: [{when: 'loss > 5%'}]}", "alerting.rules[0].when", "not a part of something"),
    (
        "alerting: {rules: [{when: 'a > 1', severity: bad}]}",
        "alerting.rules[0].severity",
        "info, warn, error, page",
    ),
    ("alerting: {rules: [{when: 'a > 1'}, {when: 'a > 1'}]}", "alerting.rules", "more than one"),
    ("alerting: {rules: [{when: 'a > 1', name: slow-rank}]}", "alerting.rules", "more than one"),
    ("alerting: {thresholds: {latency: quick}}", "alerting.thresholds.latency", "no number"),
    ("alerting: {thresholds: {latency: [1]}}", "alerting.thresholds.latency", "write a bound"),
    ("alerting: {thresholds: {latency: true}}", "alerting.thresholds.latency", "write a bound"),
    ("monitoring: {alerting: {thresholds: {gpu: 5GB}}}", "monitoring.alerting.thresholds.gpu", "no number"),
    ("alerting: {thresholds: [a]}", "alerting.thresholds", "write a map"),
    ("evaluation: {suites: [...]}", "evaluation.suites[0].target", "package.module:attribute"),
    ("evaluation: {suites: [{name: a}]}", "", "evaluation.suites[0]: the key `target` is missing"),
    ("evaluation: {suites: ['m:a', 'n:a']}", "evaluation.suites", "more than one suite"),
    (
        "evaluation: {suites: [{target: 'm:a', settings: {d: 2024-01-01}}]}",
        "evaluation.suites[0].settings.d",
        "text",
    ),
    ("evaluation: {every: {steps: 0}}", "evaluation.every.steps", "at least 1"),
    ("evaluation: {every: {epochs: 0}}", "evaluation.every.epochs", "above 0"),
    ("evaluation: {every: {seconds: 0}}", "evaluation.every.seconds", "at least 1s"),
    ("evaluation: {every: {minutes: 5}}", "evaluation.every.minutes", "known here"),
    ("evaluation: {budget: 15}", "evaluation.budget", "15%"),
    ("evaluation: {adaptive: maybe}", "evaluation.adaptive", "true or false"),
    ("kafka: {bootstrap: localhost}", "kafka.bootstrap", "host:port"),
    ("kafka: {bootstrap: 'localhost:99999'}", "kafka.bootstrap", "host:port"),
    ("kafka: {prefix: 'a b'}", "kafka.prefix", "letters"),
    ("kafka: {partitions: 0}", "kafka.partitions", "at least 1"),
    ("kafka: {security_protocol: SASL_SSL}", "kafka.security_protocol", "sasl_username"),
    ("kafka: {sasl_mechanism: PLAIN}", "kafka.sasl_mechanism", "no effect"),
    ("kafka: {sasl_password_file: /nope}", "kafka.sasl_password_file", "cannot be read"),
    ("sdk: {buffer: 5}", "sdk.buffer", "at least 1MiB"),
    ("streams: {allowed_lateness: 100ms}", "streams.allowed_lateness", "sdk.flush"),
    ("streams: {quantiles: {latency: [90]}}", "streams.quantiles.latency", "between 0 and 1"),
    ("derived: [{name: a}]", "derived[0]", "rate, ratio, mfu, ema and spread"),
    ("derived: [{name: a, rate: b, ema: c}]", "derived[0]", "rate, ratio, mfu, ema and spread"),
    ("derived: [{rate: b}]", "", "the key `name` is missing"),
    ("derived: [{name: a, ratio: [b]}]", "derived[0].ratio", "two metrics"),
    ("derived: [{name: a, ema: b}]", "derived[0].half_life", '"30s" or "50 steps"'),
    ("derived: [{name: a, ema: b, half_life: 0 steps}]", "derived[0].half_life", "1 to 1,000,000,000"),
    ("derived: [{name: a, ema: b, half_life: 10us}]", "derived[0].half_life", "at least 1ms"),
    ("derived: [{name: a, rate: b, half_life: 3s}]", "derived[0].half_life", "belongs to ema"),
    ("derived: [{name: a, spread: b, over: 2}]", "derived[0].over", "no meaning beside spread"),
    ("derived: [{name: a, rate: b, over: 0}]", "derived[0].over", "above 0"),
    ("derived: [{name: m, mfu: {peak_flops: 1e15}}]", "", "the key `flops_per_token` is missing"),
    (
        "derived: [{name: m, mfu: {flops_per_token: 6e9, peak_flops: fast}}]",
        "derived[0].mfu.peak_flops",
        "989 TFLOPS",
    ),
    ("derived: [{name: a, ema: b, half_life: 3s}, {name: b, rate: c}]", "derived[0].ema", "declared before"),
    ("derived: [{name: tps, rate: tokens_per_second}]", "derived[0].rate", "made of itself"),
    ("derived: [{name: a, rate: b}, {name: a, rate: c}]", "derived[0].name", "declared twice"),
    (
        "derived: [{name: a, rate: b}, {name: c, ema: a, half_life: 3 steps}]",
        "derived[1].ema",
        "'a' on the time axis and this half-life on the step axis",
    ),
    (
        "{derived: [{name: a, spread: b}], streams: {per_rank: [a]}}",
        "streams.per_rank",
        "no value per group",
    ),
    ("streams: {weighted_quantiles: {loss: [1]}}", "streams.weighted_quantiles.loss", "between 0 and 1"),
    ("aggregates: [{target: geometric_mean}]", "", "the key `metrics` is missing"),
    ("aggregates: [{target: geometric_mean, metrics: []}]", "aggregates[0].metrics", "name the metrics"),
    ("aggregates: [{target: a b, metrics: [x]}]", "aggregates[0].target", "package.module:attribute"),
    (
        "aggregates: [{target: 'm:A', metrics: [x]}, {target: 'n:A', metrics: [y]}]",
        "aggregates[1].name",
        "used twice",
    ),
    ("evaluator: {device: gpu}", "evaluator.device", "cuda"),
    ("scheduler: {retries: -1}", "scheduler.retries", "at least 0"),
    ("detectors: [{kind: slow_rank, params: {rato: 2}}]", "detectors[0].params.rato", "ratio"),
    ("detectors: [{kind: slow_rank, params: {ratio: fast}}]", "detectors[0].params.ratio", "number"),
    ("detectors: [{kind: slow}]", "detectors[0].kind", "did you mean 'slow_rank'?"),
    ("detectors: [{kind: loss_spike, name: slow-rank}]", "detectors[0].name", "another name"),
    ("detectors: [{kind: loss_spike}, {kind: loss_spike}]", "detectors[1].name", "twice"),
    ("5: x", "5", "no such key"),
    (
        "{storage: {root: a}, monitoring: {storage: {root: b}}}",
        "monitoring.storage.root",
        "storage.root is 'a'",
    ),
    ("{monitoring: {enabled: false}, enabled: true}", "monitoring.enabled", "keep one"),
    ("storage: {root: a, root: b}", "", "'root' is written twice"),
    (
        "storage: {root: a}\nstorage: {retention: 7d}",
        "",
        "line 2, column 1: not YAML: the key 'storage' is written",
    ),
    ("a: [", "", "line 1"),
    ("a: b: c", "", "line 1, column 5"),
    ("\tx: 1", "", "line 1"),
    ("- a", "", "map of keys"),
    ("just text", "", "map of keys"),
    ("x: &x [*x]", "x", "no such key"),
    ("x: &x {y: *x}", "", "refers to itself"),
    ("windows: [{axis: step, size: 9999999999999999999999}]", "windows[0].size", "at most 1,000,000,000"),
    ("kafka: {security_protocol: SSL, ssl_cafile: /nowhere/ca.pem}", "kafka.ssl_cafile", "cannot be read"),
    ("kafka: {security_protocol: SSL, ssl_keyfile: /}", "kafka.ssl_keyfile", "cannot be read"),
    (
        "evaluation: {suites: [{target: 'm:a', settings: {a: &a [*a]}}]}",
        "evaluation.suites[0]",
        "nested deeper",
    ),
    ("? [a, b]\n: 1", "", "a key must be text"),
    ("x: !!python/object/apply:os.system [ls]", "", "not YAML"),
]


@pytest.mark.parametrize(("text", "key", "says"), CASES, ids=[case[0][:60] for case in CASES])
def test_a_wrong_file(tmp_path: Path, text: str, key: str, says: str) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load(path, {})
    assert caught.value.key.startswith(key)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("DRIFTLINE_STORGE__ROOT", "x", "did you mean 'storage'?"),
        ("DRIFTLINE_BOTSTRAP", "x:1", "DRIFTLINE_BOTSTRAP: 'x:1'"),
        ("DRIFTLINE_STORAGE__RETENTION", "7", "DRIFTLINE_STORAGE__RETENTION: '7'"),
        ("DRIFTLINE_SDK__QUEUE_SAMPLES", "many", "DRIFTLINE_SDK__QUEUE_SAMPLES: 'many'"),
        ("DRIFTLINE_WINDOWS", "[{axis: step", "DRIFTLINE_WINDOWS, line 1"),
        ("DRIFTLINE_WINDOWS", "[{axis: step, sise: 5}]", "DRIFTLINE_WINDOWS[0].sise"),
        ("DRIFTLINE_METRICS__SYSTEM", "cpu", "write a list"),
        ("DRIFTLINE_STORAGE__ROOT__X", "cpu", "storage.root is not a map"),
    ],
)
def test_a_wrong_environment_variable_is_named(tmp_path: Path, name: str, value: str, says: str) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("storage: {root: x}")
    with pytest.raises(SettingsError) as caught:
        load(path, {name: value})
    assert says in str(caught.value)


def test_two_names_of_one_key_that_differ_are_both_named() -> None:
    with pytest.raises(SettingsError, match=r"DRIFTLINE_BOOTSTRAP.*DRIFTLINE_KAFKA__BOOTSTRAP is 'b:1'"):
        load(None, {"DRIFTLINE_BOOTSTRAP": "a:1", "DRIFTLINE_KAFKA__BOOTSTRAP": "b:1"})


@pytest.mark.parametrize(
    "text",
    [
        "kafka: {sasl_password: [hush]}",
        "kafka: {sasl_pasword: hush}",
        "kafka: {sasl_password: hush",
        "kafka: {saslpw: hush}",
        "sasl_passwort: hush",
        "{kafka: {sasl_password: hush}, monitoring: {kafka: {sasl_password: hush2}}}",
        "{kafka: {sasl_password: hush, sasl_password_file: x}}",
    ],
)
def test_a_secret_is_not_in_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load(path, {})
    assert "hush" not in str(caught.value)
    assert "hush" not in repr(caught.value)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: None, "there is no such file"),
        (lambda path: path.mkdir(), "cannot be read"),
        (lambda path: path.write_bytes(b"\xff\xfe\x00"), "cannot be read"),
        (lambda path: path.write_bytes(b"# " + b"x" * (1 << 20)), "larger than 1 MiB"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, make, says: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "settings.yaml"
    make(path)
    with pytest.raises(SettingsError, match=says):
        load(path, {})
