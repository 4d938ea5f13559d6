"""Host readings: what is unsupported is absent with a reason, never 0."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from driftline.metric_names import METRIC_NAMES
from driftline.producers.node import Node, combine_gpus

ALL = ("cpu", "memory", "gpu", "network", "disk")


class Clock:
    def __init__(self) -> None:
        self.now_us = 0

    def __call__(self) -> int:
        self.now_us += 500_000
        return self.now_us


def test_the_host_is_read_under_canonical_names() -> None:
    node = Node(ALL, whole_host=True, steady_us=Clock())
    node.read()
    found = node.read()
    known = {entry.name for entry in METRIC_NAMES}
    assert {name.partition("/")[0] for name in found} <= known
    assert {"cpu_utilization", "memory_used", "memory_utilization", "process_memory"} <= found.keys()
    assert 0 <= found["cpu_utilization"] <= 100
    assert found["process_memory"] > 1_000_000


def test_the_first_reading_has_no_rates_since_they_would_be_made_up() -> None:
    found = Node(ALL, whole_host=True, steady_us=Clock()).read()
    assert not {"cpu_utilization", "disk_read", "network_sent"} & found.keys()


def test_other_ranks_read_their_own_memory_only() -> None:
    assert Node(ALL, whole_host=False, steady_us=Clock()).read().keys() == {"process_memory"}


def test_only_the_groups_asked_for_are_read() -> None:
    node = Node(("memory",), whole_host=True, steady_us=Clock())
    assert node.read().keys() == {"memory_used", "memory_utilization", "process_memory"}


def test_rates_are_per_second_and_a_counter_that_falls_gives_none(monkeypatch: pytest.MonkeyPatch) -> None:
    totals = iter([(100, 1000), (300, 1000), (350, 10), (350, 20)])

    def counters() -> Any:
        read, written = next(totals)
        return SimpleNamespace(read_bytes=read, write_bytes=written)

    monkeypatch.setattr(psutil, "disk_io_counters", counters)
    node = Node(("disk",), whole_host=True, steady_us=Clock())
    assert [node.read() for _ in range(4)] == [
        {},
        {"disk_read": 400.0, "disk_written": 0.0},
        {"disk_read": 100.0},
        {"disk_read": 0.0, "disk_written": 20.0},
    ]


def test_a_reading_that_fails_is_absent_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise PermissionError("sandbox")

    monkeypatch.setattr(psutil, "virtual_memory", broken)
    node = Node(ALL, whole_host=True, steady_us=Clock())
    found = node.read()
    assert "memory_used" not in found
    assert "process_memory" in found
    assert "sandbox" in node.reasons["memory"]


class NVMLError(Exception):
    pass


def test_gpus_through_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs, one of which offers no power reading."""

    def power(handle: int) -> int:
        if handle:
            raise NVMLError("Not Supported")
        return 250_000

    fake = SimpleNamespace(
        NVMLError=NVMLError,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda at: at,
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=90 - 60 * handle),
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=10 * (handle + 1), total=100),
        nvmlDeviceGetPowerUsage=power,
        nvmlDeviceGetTemperature=lambda handle, _: 50 + handle,
    )
    monkeypatch.setitem(__import__("sys").modules, "pynvml", fake)
    node = Node(("gpu",), whole_host=True, steady_us=Clock())
    assert node.read() == {
        "gpu_utilization": 60.0,
        "gpu_utilization/0": 90.0,
        "gpu_utilization/1": 30.0,
        "gpu_memory_used": 30.0,
        "gpu_memory_used/0": 10.0,
        "gpu_memory_used/1": 20.0,
        "gpu_memory_utilization": 15.0,
        "gpu_memory_utilization/0": 10.0,
        "gpu_memory_utilization/1": 20.0,
        "gpu_power": 250.0,
        "gpu_power/0": 250.0,
        "gpu_temperature": 51.0,
        "gpu_temperature/0": 50.0,
        "gpu_temperature/1": 51.0,
    }
    assert node.reasons == {"gpu_power": "NVML: Not Supported"}


def test_one_gpu_has_no_second_name() -> None:
    assert combine_gpus({"gpu_power": [3.0]}) == {"gpu_power": 3.0}


def test_no_gpu_is_absent_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise NVMLError("Library Not Found")

    monkeypatch.setitem(__import__("sys").modules, "pynvml", SimpleNamespace(nvmlInit=broken))
    node = Node(("gpu",), whole_host=True, steady_us=Clock())
    assert node.read() == node.read() == {}
    assert "Library Not Found" in node.reasons["gpu"]
