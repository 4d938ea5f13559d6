"""Readings of the host: CPU, memory, disk, network, GPU, and the memory of this process.

Canonical names, which detectors, the settings file and the views use:

======================== ======== =============================================================== ========
name                     unit     meaning                                                         group
======================== ======== =============================================================== ========
cpu_utilization          % 0-100  all cores of the host, since the reading before                 cpu
memory_utilization       % 0-100  memory that cannot be given to programs                         memory
memory_used              bytes    the same in bytes                                               memory
process_memory           bytes    resident memory of this process (on every rank)                 memory
disk_read, disk_written  bytes/s  all disks of the host, since the reading before                 disk
network_sent,            bytes/s  all interfaces but loopback, since the reading before           network
network_received
gpu_utilization          % 0-100  time with a kernel running, mean over the host's GPUs           gpu
gpu_memory_used          bytes    sum over GPUs                                                   gpu
gpu_memory_utilization   % 0-100  used of all GPU memory                                          gpu
gpu_power                W        sum over GPUs                                                   gpu
gpu_temperature          C        hottest GPU                                                     gpu
======================== ======== =============================================================== ========

With more than one GPU each also has ``<name>/<index>`` (NVML's index). Readings carry no step. A host is
read by its local rank 0 alone. What cannot be read is absent, with the reason in :attr:`Node.reasons`;
never 0. Rates and ``cpu_utilization`` begin with the second reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import psutil

from driftline.producers import forks

Reading = dict[str, float]
_LOOPBACK = ("lo", "lo0")


class _Total(NamedTuple):
    """Counters that only grow, at a time."""

    time_us: int
    values: tuple[int, ...]


class Node:
    """Takes readings; one thread only.

    Args:
        groups: which groups to read (``sdk.system``).
        whole_host: False reads the memory of this process alone (ranks other than local rank 0).
        steady_us: a steady clock, for rates.
    """

    def __init__(self, groups: Iterable[str], *, whole_host: bool, steady_us: Callable[[], int]) -> None:
        self.reasons: dict[str, str] = {}
        """Why a reading is absent, by its name or group."""
        self._groups = frozenset(groups)
        self._whole_host = whole_host
        self._steady_us = steady_us
        self._totals: dict[str, _Total] = {}
        self._cpu_begun = False
        self._process = psutil.Process()
        self._gpus = _Gpus(self.reasons) if whole_host and "gpu" in self._groups else None

    def read(self) -> Reading:
        """What can be read now; never raises."""
        made: Reading = {}
        if "memory" in self._groups:
            self._try("process_memory", self._process_memory, made)
        if not self._whole_host:
            return made
        if "cpu" in self._groups:
            self._try("cpu", self._cpu, made)
        if "memory" in self._groups:
            self._try("memory", _memory, made)
        if "disk" in self._groups:
            self._try("disk", self._disk, made)
        if "network" in self._groups:
            self._try("network", self._network, made)
        if self._gpus is not None:
            self._try("gpu", self._gpus.read, made)
        return made

    def _try(self, what: str, take: Callable[[], Reading], made: Reading) -> None:
        try:
            made.update(take())
        except Exception as error:  # noqa: BLE001  drivers and sandboxes fail in many ways; kept as the reason
            self.reasons[what] = f"{type(error).__name__}: {error}"[:300]

    def _process_memory(self) -> Reading:
        return {"process_memory": float(self._process.memory_info().rss)}

    def _cpu(self) -> Reading:
        percent = psutil.cpu_percent(interval=None)
        begun, self._cpu_begun = self._cpu_begun, True
        return {"cpu_utilization": percent} if begun else {}

    def _disk(self) -> Reading:
        found = psutil.disk_io_counters()
        if found is None:
            self.reasons["disk"] = "the system counts no disk input and output"
            return {}
        return self._rates(("disk_read", "disk_written"), (found.read_bytes, found.write_bytes))

    def _network(self) -> Reading:
        each = [io for name, io in psutil.net_io_counters(pernic=True).items() if name not in _LOOPBACK]
        if not each:
            self.reasons["network"] = "no interface but loopback"
            return {}
        sums = (sum(io.bytes_sent for io in each), sum(io.bytes_recv for io in each))
        return self._rates(("network_sent", "network_received"), sums)

    def _rates(self, names: tuple[str, str], values: tuple[int, ...]) -> Reading:
        now = _Total(self._steady_us(), values)
        before = self._totals.get(names[0])
        self._totals[names[0]] = now
        if before is None or now.time_us <= before.time_us:
            return {}
        seconds = (now.time_us - before.time_us) / 1e6
        # A counter that fell (an interface went away) gives no rate, rather than a negative one.
        return {
            name: (new - old) / seconds
            for name, new, old in zip(names, now.values, before.values, strict=True)
            if new >= old
        }


def _memory() -> Reading:
    found = psutil.virtual_memory()
    used = found.total - found.available
    return {"memory_used": float(used), "memory_utilization": 100.0 * used / found.total}


class _Gpus:
    """All GPUs of the host through NVML, opened at the first reading."""

    def __init__(self, reasons: dict[str, str]) -> None:
        self._reasons = reasons
        self._nvml: Any = None
        self._handles: list[Any] | None = None

    def read(self) -> Reading:
        handles = self._open()
        columns: dict[str, list[float | None]] = {}
        for handle in handles:
            for name, value in self._one(handle).items():
                columns.setdefault(name, []).append(value)
        return combine_gpus(columns)

    def _open(self) -> list[Any]:
        if self._handles is None:
            self._handles = []
            with forks.importing():
                import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
            self._handles = [
                pynvml.nvmlDeviceGetHandleByIndex(at) for at in range(pynvml.nvmlDeviceGetCount())
            ]
        return self._handles

    def _one(self, handle: Any) -> dict[str, float | None]:
        nvml = self._nvml
        return {
            "gpu_utilization": self._get(
                "gpu_utilization", lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu
            ),
            "gpu_memory_used": self._get(
                "gpu_memory_used", lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used
            ),
            "gpu_memory_total": self._get(
                "gpu_memory_used", lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total
            ),
            "gpu_power": self._get("gpu_power", lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
            "gpu_temperature": self._get(
                "gpu_temperature", lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
            ),
        }

    def _get(self, name: str, take: Callable[[], Any]) -> float | None:
        try:
            return float(take())
        except self._nvml.NVMLError as error:
            self._reasons[name] = f"NVML: {error}"
            return None


def combine_gpus(columns: dict[str, list[float | None]]) -> Reading:
    """Readings per GPU (None: not supported) as readings of the host.

    >>> combine_gpus({"gpu_utilization": [90.0, None, 30.0], "gpu_power": [None, None, None]})
    {'gpu_utilization': 60.0, 'gpu_utilization/0': 90.0, 'gpu_utilization/2': 30.0}
    """
    columns = dict(columns)
    totals = columns.pop("gpu_memory_total", [])
    used = columns.get("gpu_memory_used", [])
    made: Reading = {}
    reduce: dict[str, Callable[[list[float]], float]] = {"gpu_utilization": _mean, "gpu_temperature": max}
    for name, values in columns.items():
        known = [value for value in values if value is not None]
        if known:
            made[name] = reduce.get(name, sum)(known)
        if len(values) > 1:
            made |= {f"{name}/{at}": value for at, value in enumerate(values) if value is not None}
    pairs = [(u, t) for u, t in zip(used, totals, strict=False) if u is not None and t]
    if pairs:
        made["gpu_memory_utilization"] = 100.0 * sum(u for u, _ in pairs) / sum(t for _, t in pairs)
        if len(used) > 1:
            made |= {
                f"gpu_memory_utilization/{at}": 100.0 * u / t
                for at, (u, t) in enumerate(zip(used, totals, strict=False))
                if u is not None and t
            }
    return made


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
