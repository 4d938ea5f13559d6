"""One evaluation: a whole checkpoint and a suite in, outcomes per item and numbers out. No Kafka here.

Order: hash the weights, load the model, make sure that the files are still those that were checked, compute,
compare some items at batch size 1, judge, sum up. What suite code raises passes through.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, get_args

import msgspec
import torch

from driftline.errors import BadData
from driftline.evaluator.backend import Backend, Completion, ScoreRequest
from driftline.evaluator.checkpoints import CheckpointFolder
from driftline.evaluator.metrics import JUDGED, ItemOutcome
from driftline.evaluator.reasons import one_line
from driftline.evaluator.suites import (
    GenerationSuite,
    LoadedSuite,
    Question,
    ScoringSuite,
    Suite,
    Text,
    TokenModel,
)
from driftline.evaluator.torch_backend import TorchBackend
from driftline.events import ItemStatus, Metric, Number, number, to_float

Progress = Callable[[int, int], None]
"""``progress(done, total)``: a sign of life; may raise to stop the evaluation."""

LOGLIKELIHOOD_TOLERANCE = 1e-3
"""Per token, in the self-check; float32 differs by about 1e-6."""


class Evaluation(NamedTuple):
    """What an evaluation found."""

    outcomes: list[ItemOutcome]
    metrics: list[Metric]
    tokens: int
    weights_digest: str
    settings: dict[str, Any]
    warning: str = ""
    """What a reader of the numbers must know."""


def evaluate(loaded: LoadedSuite, folder: CheckpointFolder, *, device: str, progress: Progress) -> Evaluation:
    """Evaluates one checkpoint.

    Raises:
        Changed: the weights were written to or deleted meanwhile.
        BadData: the suite's items or grader are unusable.
        Exception: whatever suite code raises.
    """
    suite, total = loaded.suite, len(loaded.items)
    digest = folder.digest(lambda: progress(0, total))
    backend = TorchBackend.of(suite, _load(suite, folder, device), device)
    found = _outcomes(loaded, backend, progress)
    check = _self_check(loaded, backend, found.raw)
    accumulators = suite.metrics()
    for outcome in found.outcomes:
        for accumulator in accumulators:
            accumulator.update(outcome)
    statuses = Counter(outcome.status for outcome in found.outcomes)
    settings = _describe(suite) | backend.describe() | {"self_check": check, "statuses": dict(statuses)}
    if found.grader_error:
        settings["grader_error"] = found.grader_error
    return Evaluation(
        outcomes=found.outcomes,
        metrics=[_sendable(accumulator.compute()) for accumulator in accumulators],
        tokens=backend.tokens,
        weights_digest=digest,
        settings=settings,
        warning=_warning(check, found.grader_error),
    )


def pick_device(wanted: str) -> str:
    """The device to use: "auto" is the first CUDA device, else the CPU."""
    if wanted != "auto":
        return wanted
    return "cuda" if torch.cuda.is_available() else "cpu"


class _Found(NamedTuple):
    outcomes: list[ItemOutcome]
    raw: Sequence[Any]
    """What the backend answered, in the order of the items."""
    grader_error: str = ""


def _load(suite: Suite, folder: CheckpointFolder, device: str) -> TokenModel:
    """The model, of the very files that were checked and hashed."""
    try:
        model = suite.load(folder, device)
    except Exception:
        folder.check_unchanged()  # the better reason, if they are not
        raise
    folder.check_unchanged()
    if not callable(model):
        raise BadData(
            f"load returned a {type(model).__name__}: it must return model(tokens, mask, positions)"
        )
    return model


def _outcomes(loaded: LoadedSuite, backend: Backend, progress: Progress) -> _Found:
    total = len(loaded.items)
    raw = _compute(loaded.suite, backend, loaded.items, loaded.suite.batch_size, lambda n: progress(n, total))
    if isinstance(loaded.suite, ScoringSuite):
        return _Found([_scored(item, answer) for item, answer in zip(loaded.items, raw, strict=True)], raw)
    errors: list[Exception] = []
    outcomes = [
        _judged(loaded.suite, item, answer, errors)
        for item, answer in zip(loaded.items, raw, strict=True)
        if isinstance(item, Question)
    ]
    if errors and len(errors) == sum(answer.finish == "stop" for answer in raw):
        raise errors[0]  # no answer was graded: that is no number
    return _Found(outcomes, raw, one_line(errors[0]) if errors else "")


def _compute(
    suite: Suite,
    backend: Backend,
    items: Sequence[Question | Text],
    batch_size: int,
    progress: Callable[[int], None],
) -> Sequence[Any]:
    if isinstance(suite, GenerationSuite):
        prompts = [item.prompt for item in items if isinstance(item, Question)]
        return backend.generate(
            prompts, max_new_tokens=suite.max_new_tokens, batch_size=batch_size, progress=progress
        )
    requests = [ScoreRequest(item.prefix, item.text) for item in items if isinstance(item, Text)]
    return backend.loglikelihood(requests, batch_size=batch_size, progress=progress)


def _scored(item: Any, answer: Any) -> ItemOutcome:
    return ItemOutcome(
        item.id,
        "scored",
        response_length=answer.tokens,
        score=answer.loglikelihood,
        loglikelihood=answer.loglikelihood,
        tokens=answer.tokens,
    )


def _judged(
    suite: GenerationSuite, item: Question, answer: Completion, errors: list[Exception]
) -> ItemOutcome:
    """One verdict. A grader that raises gives "grader_error" for its item; the first error is kept."""
    status: ItemStatus
    if answer.finish == "length":
        status = "truncated"
    elif answer.finish == "non_finite":
        status = "no_answer"
    else:
        try:
            status = _verdict(suite.grade(answer.text, item))
        except Exception as error:  # noqa: BLE001 -- suite code: its item is counted as grader_error
            errors.append(error)
            status = "grader_error"
    judged = status in JUDGED
    return ItemOutcome(
        item.id,
        status,
        response=answer.text,
        response_length=len(answer.tokens),
        expected=item.expected,
        score=float(status == "correct") if judged else None,
    )


def _verdict(given: ItemStatus | bool) -> ItemStatus:
    if isinstance(given, bool):
        return "correct" if given else "wrong"
    if given not in get_args(ItemStatus):
        raise BadData(
            f"grade returned {given!r}: it must return True, False or one of {get_args(ItemStatus)}"
        )
    return given


def _self_check(loaded: LoadedSuite, backend: Backend, raw: Sequence[Any]) -> dict[str, Any]:
    """Some items again, one by one: the shortest (most padding) and others evenly spread by length."""
    suite = loaded.suite
    count = min(suite.check_items, len(loaded.items))
    if suite.batch_size == 1 or count == 0:
        return {"items": 0, "passed": True}
    by_length = sorted(range(len(loaded.items)), key=lambda at: (_length(loaded.items[at]), at))
    chosen = [by_length[at * len(by_length) // count] for at in range(count)]
    alone = _compute(suite, backend, [loaded.items[at] for at in chosen], 1, lambda done: None)
    if isinstance(suite, GenerationSuite):
        differ = sum(raw[at].tokens != one.tokens for at, one in zip(chosen, alone, strict=True))
        return {"items": count, "different_responses": differ, "passed": differ == 0}
    worst = max(_distance(raw[at], one) for at, one in zip(chosen, alone, strict=True))
    passed = worst <= LOGLIKELIHOOD_TOLERANCE
    return {"items": count, "loglikelihood_per_token_difference_max": worst, "passed": passed}


def _length(item: Question | Text) -> int:
    return len(item.prompt) if isinstance(item, Question) else len(item.prefix) + len(item.text)


def _distance(one: Any, other: Any) -> float:
    """Difference per token; two values that are both not finite in the same way do not differ."""
    if one.loglikelihood == other.loglikelihood or (
        math.isnan(one.loglikelihood) and math.isnan(other.loglikelihood)
    ):
        return 0.0
    distance = abs(one.loglikelihood - other.loglikelihood) / max(1, one.tokens)
    return distance if math.isfinite(distance) else sys.float_info.max


def _sendable(metric: Metric) -> Metric:
    """A user's metric may hold NaN as a float, which JSON has not."""

    def sendable(value: Number | None) -> Number | None:
        return None if value is None else number(to_float(value))

    return msgspec.structs.replace(
        metric,
        value=number(to_float(metric.value)),
        stderr=sendable(metric.stderr),
        low=sendable(metric.low),
        high=sendable(metric.high),
    )


def _describe(suite: Suite) -> dict[str, Any]:
    told: dict[str, Any] = {"batch_size": suite.batch_size, "batch_tokens": suite.batch_tokens}
    if isinstance(suite, GenerationSuite):
        return told | {"kind": "generation", "decoding": "greedy", "max_new_tokens": suite.max_new_tokens}
    return told | {"kind": "scoring", "start": suite.start}


def _warning(check: dict[str, Any], grader_error: str) -> str:
    warnings = []
    if not check["passed"]:
        warnings.append(
            "self-check: batched and single answers differ; does the model hide padding by attention_mask "
            "and place tokens by position_ids?"
        )
    if grader_error:
        warnings.append(f"the grader raised for some items, which are not counted: {grader_error}")
    return "; ".join(warnings)
