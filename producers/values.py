"""What counts as a number in ``log``: the one place that decides, by type, without ever raising.

Accepted, stored as float64 as they were at the call:

- ``float``, ``int``, ``bool`` (True is 1), ``Decimal``, ``Fraction`` and other real numbers;
- NumPy scalars and arrays of one element, of bool, integer or float type;
- torch tensors of one element, any device, any bool, integer or float type (bf16 too, with or without grad).
  CPU tensors are read at once. Those on a device are copied by work queued behind their own stream, never
  waited for here, and read on the SDK's thread (:class:`Deferred`);
- arrays of one element of JAX and TensorFlow, which cannot change: read on the SDK's thread.

Refused, counted under ``refused_<reason>``, the other keys kept:

========= ==========================================================================================
text      strings and bytes, **also "nan" or "1.5"**: text is not a number, whoever wrote it meant a label
none      None
elements  arrays and tensors with no or several elements
nested    dicts, lists, tuples, sets
complex   complex numbers, and arrays of them
range     integers too large for a float64
device    tensors on no real device (meta, fake), distributed tensors (``full_tensor()`` first),
          and tensors logged while a CUDA graph is being captured
type      anything else
========= ==========================================================================================

Integers over 2**53 are rounded as ``float()`` does. NaN and infinities are data.
"""

from __future__ import annotations

import math
import numbers
import operator
import sys
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from driftline.producers.counters import words

RefusalReason = Literal["text", "none", "elements", "nested", "complex", "range", "device", "type"]
PLAIN_TYPES = frozenset((float, int, bool))


class Refusal(NamedTuple):
    """Why a value is not a number; ``detail`` names what it was."""

    reason: RefusalReason
    detail: str


class Deferred(Protocol):
    """A number that is still on its way from a device."""

    def ready(self) -> bool:
        """True once :meth:`read` will not wait."""
        ...

    def read(self) -> float | Refusal:
        """The number. Called on the SDK's thread only."""
        ...


class Later:
    """A value that cannot change and is read by a function on the SDK's thread; ``done`` says when."""

    __slots__ = ("_done", "_get", "_what")

    def __init__(self, get: Callable[[], Any], done: Callable[[], bool] | None, what: str) -> None:
        self._get, self._done, self._what = get, done, what

    def ready(self) -> bool:
        if self._done is None:
            return True
        try:
            return bool(self._done())
        except Exception:  # noqa: BLE001  a broken device is found, and counted, by read()
            return True

    def read(self) -> float | Refusal:
        try:
            return float(self._get())
        except Exception as error:  # noqa: BLE001  any library's error: the value is refused and counted
            return Refusal("device", f"{self._what} could not be read: {words(error)}"[:300])


def admit(value: object) -> float | Deferred | Refusal:
    """One value of ``log``; see the module's docstring. Never raises, never waits for a device.

    >>> admit(True), admit(np.float32(1.5)), admit("nan")
    (1.0, 1.5, Refusal(reason='text', detail="text 'nan'"))
    """
    if type(value) is float:
        return value
    try:
        return _admit(value)
    except OverflowError:
        return Refusal("range", "an integer too large for a float64")
    except Exception as error:  # noqa: BLE001  any object may come here, with any behaviour
        return Refusal("type", f"{type(value).__name__} that fails with {words(error)}"[:300])


def admit_all(values: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, Refusal], bool]:
    """Splits a mapping into accepted (floats and Deferred) and refused; True if any is Deferred."""
    accepted: dict[str, Any] = {}
    refused: dict[str, Refusal] = {}
    deferred = False
    for name, value in values.items():
        found = admit(value)
        if type(found) is float:
            accepted[name] = found
        elif isinstance(found, Refusal):
            refused[name] = found
        else:
            accepted[name] = found
            deferred = True
    return accepted, refused, deferred


def admit_weight(weight: object) -> float | Deferred | None:
    """A weight: a number as above that is finite and above 0; else None.

    >>> admit_weight(12), admit_weight(0), admit_weight(float("nan"))
    (12.0, None, None)
    """
    found = admit(weight)
    if isinstance(found, Refusal):
        return None
    if type(found) is float and not (found > 0 and math.isfinite(found)):
        return None
    return found


def is_dear_to_add(value: object) -> bool:
    """True for NumPy values whose sum may be large or may warn (overflow, infinity less infinity)."""
    if isinstance(value, np.ndarray):
        return value.size > 1
    if isinstance(value, np.integer):
        return value.itemsize < 8
    return isinstance(value, np.float16) or (isinstance(value, np.floating) and not np.isfinite(value))


def _admit(value: Any) -> float | Deferred | Refusal:
    if isinstance(value, (float, int, np.bool_)):
        return float(value)
    if value is None:
        return Refusal("none", "None")
    if isinstance(value, (str, bytes, bytearray)):
        return Refusal("text", f"text {value[:40]!r}")
    if isinstance(value, (dict, list, tuple, set, frozenset)):
        return Refusal("nested", f"a {type(value).__name__} with {len(value)} entries")
    if isinstance(value, (np.generic, np.ndarray)):
        return _admit_numpy(value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, getattr(torch, "Tensor", ())):
        return _admit_tensor(torch, value)
    if isinstance(value, (numbers.Real, Decimal)):
        return float(value)
    if isinstance(value, (complex, numbers.Complex)):
        return Refusal("complex", "a complex number")
    return _admit_other(value)


def _admit_numpy(value: np.generic | np.ndarray[Any, Any]) -> float | Refusal:
    if value.dtype.kind == "c":
        return Refusal("complex", f"complex {value.dtype}")
    if value.size != 1:
        return Refusal("elements", f"array of shape {value.shape}")
    # "V" holds the bfloat16 and float8 types of ml_dtypes
    if value.dtype.kind not in "biuf" and not (value.dtype.kind == "V" and hasattr(value, "__float__")):
        return Refusal("text" if value.dtype.kind in "US" else "type", f"NumPy {value.dtype}")
    return float(value.reshape(-1)[0])


def _admit_tensor(torch: Any, value: Any) -> float | Deferred | Refusal:
    if value.numel() != 1:
        return Refusal("elements", f"tensor of shape {tuple(value.shape)}")
    if value.is_complex():
        return Refusal("complex", f"complex {value.dtype}")
    # A distributed tensor would have to talk to the other ranks to know its value, from any call.
    if any(base.__name__ in ("DTensor", "FakeTensor", "FunctionalTensor") for base in type(value).__mro__):
        return Refusal("device", f"a {type(value).__name__}: log a local value, e.g. of full_tensor()")
    kind = value.device.type
    if kind == "cpu":
        return float(value.detach().item())
    if kind == "meta":
        return Refusal("device", "a tensor on the meta device has no value")
    if kind == "cuda":
        return _from_cuda(torch, value)
    # Other devices: an own copy on the device is queued now, the wait happens on the SDK's thread.
    copy = value.detach().clone()
    return Later(copy.item, None, f"{kind} tensor")


def _from_cuda(torch: Any, value: Any) -> Deferred | Refusal:
    """Queues a copy to pinned host memory behind the tensor's stream, and an event behind the copy."""
    if torch.cuda.is_current_stream_capturing():
        return Refusal("device", "a CUDA graph is being captured: log after the replay")
    with torch.cuda.device(value.device):
        host = value.detach().to("cpu", non_blocking=True)
        arrived = torch.cuda.Event(blocking=True)
        arrived.record()
    return Later(host.item, arrived.query, "CUDA tensor")


def _admit_other(value: Any) -> float | Deferred | Refusal:
    root = type(value).__module__.partition(".")[0]
    if root in ("jax", "jaxlib", "tensorflow"):
        shape = tuple(value.shape)
        if math.prod(shape) != 1:
            return Refusal("elements", f"array of shape {shape}")
        return Later(
            lambda: np.asarray(value).reshape(-1)[0], getattr(value, "is_ready", None), f"{root} array"
        )
    return Refusal("type", f"{type(value).__module__}.{type(value).__qualname__}")


def as_step(step: object) -> int | None:
    """An integer of 64 bits; floats without a fraction count, since many trainers compute steps.

    A tensor on a device is none: to read it would wait for the device.
    """
    try:
        if getattr(getattr(step, "device", None), "type", "cpu") != "cpu":
            return None
        number = int(step) if isinstance(step, float) and step.is_integer() else operator.index(step)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001  any object may come here
        return None
    return number if -(2**63) < number < 2**63 else None
