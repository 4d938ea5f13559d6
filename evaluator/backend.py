"""What a backend is: something that continues prompts and scores texts.

The torch callable of this module's neighbour is the first; an engine or an endpoint answers the same two
calls. Results come in the order of the requests. ``progress(finished)`` is called now and then with the
number of finished requests; it may raise to stop the work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

Progress = Callable[[int], None]
FinishReason = Literal["stop", "length", "non_finite"]


class Completion(NamedTuple):
    """A response: its text and tokens (without the stop token), and why it ended.

    "length": it had not stopped when it reached its limit. "non_finite": the model gave NaN or infinity where
    the next token should have come from.
    """

    text: str
    tokens: tuple[int, ...]
    finish: FinishReason


class ScoreRequest(NamedTuple):
    """The likelihood of ``text`` after ``prefix``."""

    prefix: str
    text: str


class Likelihood(NamedTuple):
    """Sum of natural log-likelihoods of a text's tokens, and how many tokens were scored."""

    loglikelihood: float
    tokens: int


class Backend(Protocol):
    def generate(
        self, prompts: Sequence[str], *, max_new_tokens: int, batch_size: int, progress: Progress
    ) -> list[Completion]:
        """Greedy continuations."""
        ...

    def loglikelihood(
        self, requests: Sequence[ScoreRequest], *, batch_size: int, progress: Progress
    ) -> list[Likelihood]:
        """Scores."""
        ...

    def describe(self) -> dict[str, Any]:
        """What a comparison needs to be fair: kind, dtype, device, versions."""
        ...

    @property
    def tokens(self) -> int:
        """Tokens computed so far, without padding."""
        ...
