"""How a suite is declared: items, a way to make a model of a checkpoint, and how answers are judged.

A suite is a Python object (or a function that returns one); the YAML names it by an entry point of the group
``driftline.suites`` or as ``module:attribute``::

    # my_suites.py
    from driftline.evaluator.suites import GenerationSuite, Question

    def sums(count: int = 200) -> GenerationSuite:
        return GenerationSuite(
            items=[Question(id=f"{a}+{a}", prompt=f"{a}+{a}=", expected=str(2 * a)) for a in range(count)],
            load=load,              # (checkpoint: CheckpointFolder, device: str) -> model
            encode=encode,          # str -> list of token ids
            decode=decode,          # list of token ids -> str
            stop=NEWLINE,           # token id that ends a response
            max_new_tokens=8,
        )

    # driftline.yaml
    evaluation:
      suites: [{name: sums, target: "my_suites:sums", settings: {count: 500}}]

**The model** is any callable ``model(tokens, attention_mask, position_ids) -> logits``: int64 tensors [B,
T] on the device of ``load``, logits float [B, T, V]. ``attention_mask`` is 1 at real tokens and 0 at
padding (left of a prompt, right of a scored text): attention must hide padded keys, and ``position_ids``
count real tokens from 0. A query that sees no key must not become NaN (mask with a large negative number
instead of -inf, or let each token see itself). It runs in ``torch.inference_mode``; ``.eval()`` is called
where the model has it.

Everything is called in the evaluator's main thread. What suite code raises makes the evaluation ``failed``
with that reason.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from driftline.errors import BadData, SettingsError
from driftline.evaluator.metrics import ExactMatch, MetricAccumulator, Perplexity, ResponseLength
from driftline.events import ItemStatus, SuiteRef

if TYPE_CHECKING:
    import torch

    from driftline.evaluator.checkpoints import CheckpointFolder

GROUP = "driftline.suites"
MAX_ITEMS = 1_000_000


class TokenModel(Protocol):
    """A causal language model: logits [B, T, V] for tokens, mask and positions [B, T]."""

    def __call__(
        self, tokens: torch.Tensor, attention_mask: torch.Tensor, position_ids: torch.Tensor, /
    ) -> torch.Tensor: ...


class Question(NamedTuple):
    """One item of a :class:`GenerationSuite`."""

    id: str
    prompt: str
    expected: str


class Text(NamedTuple):
    """One item of a :class:`ScoringSuite`: the likelihood of ``text`` after ``prefix``."""

    id: str
    text: str
    prefix: str = ""


Load = Callable[["CheckpointFolder", str], TokenModel]
Encode = Callable[[str], Sequence[int]]
Decode = Callable[[Sequence[int]], str]
Grade = Callable[[str, Question], ItemStatus | bool]
Metrics = Callable[[], Sequence[MetricAccumulator]]
Item = TypeVar("Item", Question, Text)


def exact_match(response: str, question: Question) -> ItemStatus:
    """ "correct" when both are equal without white space at the ends, "no_answer" for an empty response."""
    given = response.strip()
    if not given:
        return "no_answer"
    return "correct" if given == question.expected.strip() else "wrong"


@dataclass(frozen=True, kw_only=True)
class _Suite(Generic[Item]):
    """What both kinds share."""

    load: Load
    """Makes the model of a checkpoint, on a device ("cpu", "cuda:0")."""
    items: Sequence[Item] | Callable[[], Iterable[Item]]
    """The items, or a function that reads them (called once, kept for later checkpoints)."""
    encode: Encode
    batch_size: int = 64
    """Rows of a batch at most; halved when memory runs out."""
    batch_tokens: int | None = None
    """Tokens of a batch at most, padding included."""
    pad: int = 0
    """Any token id: padding is masked, so its value must not matter."""
    check_items: int = 4
    """Items that are computed again at batch size 1 and compared; 0 turns the self-check off."""

    def read_items(self) -> tuple[Item, ...]:
        """The items. Raises BadData when there are none, too many, or two with one id."""
        items = tuple(self.items() if callable(self.items) else self.items)
        if not 0 < len(items) <= MAX_ITEMS:
            raise BadData(f"the suite has {len(items)} items; it needs 1 to {MAX_ITEMS}")
        if len({item.id for item in items}) < len(items):
            raise BadData("two items of the suite have the same id: give each its own")
        return items


@dataclass(frozen=True, kw_only=True)
class GenerationSuite(_Suite[Question]):
    """Greedy responses to prompts, judged one by one."""

    decode: Decode
    stop: int | Collection[int] | None = None
    """Token ids that end a response (not part of it); None: it always has ``max_new_tokens``."""
    max_new_tokens: int = 64
    """A response that has not stopped by then is "truncated", whatever its text."""
    grade: Grade = exact_match
    """Judges a response that has stopped: True, False, or a status. An item whose grader raises is not
    counted."""
    metrics: Metrics = lambda: (ExactMatch(), ResponseLength())

    @property
    def stops(self) -> frozenset[int]:
        if self.stop is None:
            return frozenset()
        return frozenset((self.stop,) if isinstance(self.stop, int) else self.stop)


@dataclass(frozen=True, kw_only=True)
class ScoringSuite(_Suite[Text]):
    """Log-likelihood of texts; perplexity is weighted by tokens."""

    start: int | None = None
    """Token id put before every text. Without it (and without prefix) a text's first token has no context and
    is not scored."""
    metrics: Metrics = lambda: (Perplexity(),)


Suite = GenerationSuite | ScoringSuite


@dataclass(frozen=True)
class LoadedSuite:
    """A suite with its items read."""

    suite: Suite
    items: tuple[Question, ...] | tuple[Text, ...]
    digest: str = field(default="")
    """Content hash of the items."""


def resolve(ref: SuiteRef) -> Suite:
    """Finds and makes the suite that the YAML names.

    Raises:
        SettingsError: no such entry point, module or attribute, or it is no suite. Names the remedy.
        Exception: whatever the suite's own module or function raises.
    """
    target = _attribute(ref)
    if isinstance(target, GenerationSuite | ScoringSuite):
        if ref.settings:
            raise SettingsError(
                _key(ref), ref.target, "it is a ready suite and takes no settings; name a function that does"
            )
        return target
    if not callable(target):
        raise SettingsError(
            _key(ref),
            ref.target,
            f"it is a {type(target).__name__}; name a suite or a function that returns one",
        )
    made = target(**ref.settings)
    if not isinstance(made, GenerationSuite | ScoringSuite):
        raise SettingsError(
            _key(ref),
            ref.target,
            f"it returned a {type(made).__name__}, not a GenerationSuite or ScoringSuite",
        )
    return made


def read(suite: Suite) -> LoadedSuite:
    """Reads the suite's items and hashes them."""
    items = suite.read_items()
    return LoadedSuite(suite, items, hashlib.sha256(msgspec.json.encode(items)).hexdigest()[:32])


def check_target(ref: SuiteRef) -> None:
    """Checks without running suite code that the target can be found. Raises SettingsError."""
    if ":" not in ref.target:
        _entry_point(ref)
        return
    module, _, attribute = ref.target.partition(":")
    _see_working_folder()
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        found = None
    if found is None or not attribute:
        raise SettingsError(_key(ref), ref.target, _remedy(module))


def same(one: SuiteRef, other: SuiteRef) -> bool:
    """Whether both name the same suite, version and settings."""
    return _canonical(one) == _canonical(other)


def _canonical(ref: SuiteRef) -> bytes:
    return msgspec.json.encode(ref, order="deterministic")


def _attribute(ref: SuiteRef) -> Any:
    if ":" not in ref.target:
        return _entry_point(ref).load()
    check_target(ref)
    name, _, path = ref.target.partition(":")
    found: Any = importlib.import_module(name)
    for part in path.split("."):
        if not hasattr(found, part):
            raise SettingsError(_key(ref), ref.target, f"module {name} has no {path}")
        found = getattr(found, part)
    return found


def _entry_point(ref: SuiteRef) -> Any:
    installed = entry_points(group=GROUP)
    for entry in installed:
        if entry.name == ref.target:
            return entry
    known = ", ".join(sorted(entry.name for entry in installed)) or "none"
    raise SettingsError(
        _key(ref),
        ref.target,
        f'no entry point of group {GROUP} (installed: {known}); or write "module:attribute"',
    )


def _see_working_folder() -> None:
    """``module:attribute`` also finds modules in the working folder (last, so that they hide nothing)."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)


def _remedy(module: str) -> str:
    return (
        f'no module {module!r} is found here; write "module:attribute", '
        "install the module or start the evaluator in its folder"
    )


def _key(ref: SuiteRef) -> str:
    return f"evaluation.suites.{ref.name}.target"
