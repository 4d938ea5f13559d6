"""Numbers of an evaluation, by a small protocol: ``update`` per item, ``compute``, ``reset``, ``merge``.

Merging parts in any order gives the same number as one pass. A metric that saw nothing to rest on computes
NaN with count 0. Items whose grader failed or whose expected answer cannot be read are never counted as
wrong: they stay out of ``exact_match`` and are counted by status beside it.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol, Self

from driftline.evaluator import statistics
from driftline.evaluator.statistics import Estimate
from driftline.events import ItemStatus, Metric, number

JUDGED: frozenset[ItemStatus] = frozenset({"correct", "wrong", "no_answer", "truncated"})


class ItemOutcome(NamedTuple):
    """What one item gave. Log-likelihood is natural, of ``tokens`` scored tokens."""

    item: str
    status: ItemStatus
    response: str = ""
    response_length: int | None = None
    expected: str = ""
    score: float | None = None
    loglikelihood: float | None = None
    tokens: int = 0


class MetricAccumulator(Protocol):
    """A metric that can be computed in parts."""

    def update(self, outcome: ItemOutcome) -> None:
        """Takes one item."""
        ...

    def compute(self) -> Metric:
        """The number so far."""
        ...

    def reset(self) -> None:
        """As new."""
        ...

    def merge(self, other: Self) -> None:
        """Takes all that ``other`` took."""
        ...


class ExactMatch:
    """Share of judged items that are correct, with Wilson's interval."""

    def __init__(self, name: str = "exact_match") -> None:
        self.name = name
        self.reset()

    def reset(self) -> None:
        self.correct = 0
        self.judged = 0

    def update(self, outcome: ItemOutcome) -> None:
        self.judged += outcome.status in JUDGED
        self.correct += outcome.status == "correct"

    def merge(self, other: ExactMatch) -> None:
        self.correct += other.correct
        self.judged += other.judged

    def compute(self) -> Metric:
        return _metric(self.name, statistics.proportion(self.correct, self.judged), unit="share")


class ResponseLength:
    """Mean length of the responses in tokens, truncated ones included, with a t interval."""

    def __init__(self, name: str = "response_length") -> None:
        self.name = name
        self.reset()

    def reset(self) -> None:
        self.lengths: list[int] = []

    def update(self, outcome: ItemOutcome) -> None:
        if outcome.response_length is not None:
            self.lengths.append(outcome.response_length)

    def merge(self, other: ResponseLength) -> None:
        self.lengths += other.lengths

    def compute(self) -> Metric:
        return _metric(self.name, statistics.mean(self.lengths), unit="tokens")


class Perplexity:
    """exp(total negative log-likelihood / total tokens): token-weighted, never a mean of means.

    The interval is that of the mean negative log-likelihood, clustered by text, through exp; ``stderr`` by
    the delta method.
    """

    def __init__(self, name: str = "perplexity") -> None:
        self.name = name
        self.reset()

    def reset(self) -> None:
        self.losses: list[float] = []
        self.tokens: list[int] = []

    def update(self, outcome: ItemOutcome) -> None:
        if outcome.loglikelihood is not None and outcome.tokens:
            self.losses.append(-outcome.loglikelihood)
            self.tokens.append(outcome.tokens)

    def merge(self, other: Perplexity) -> None:
        self.losses += other.losses
        self.tokens += other.tokens

    def compute(self) -> Metric:
        loss = statistics.ratio(self.losses, self.tokens)
        value = _exp(loss.value)
        scaled = Estimate(
            value,
            None if loss.stderr is None else value * loss.stderr,
            None if loss.low is None else _exp(loss.low),
            None if loss.high is None else _exp(loss.high),
            loss.size,
        )
        return _metric(self.name, scaled, unit="per token")


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def _metric(name: str, estimate: Estimate, *, unit: str) -> Metric:
    return Metric(
        name=name,
        value=number(estimate.value),
        stderr=None if estimate.stderr is None else number(estimate.stderr),
        low=None if estimate.low is None else number(estimate.low),
        high=None if estimate.high is None else number(estimate.high),
        count=estimate.size,
        unit=unit,
    )
