"""The torch callable as a backend: text to tokens, batches, halving, tokens to text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeVar

import torch

from driftline.errors import BadData
from driftline.evaluator import scoring
from driftline.evaluator.backend import Completion, Likelihood, Progress, ScoreRequest
from driftline.evaluator.batching import plan, run_halving
from driftline.evaluator.generation import greedy
from driftline.evaluator.scoring import Row
from driftline.evaluator.suites import Decode, Encode, GenerationSuite, Suite, TokenModel

R = TypeVar("R")


class TorchBackend:
    """A model on one device; see :class:`driftline.evaluator.backend.Backend`."""

    def __init__(
        self,
        model: TokenModel,
        *,
        device: str,
        encode: Encode,
        decode: Decode | None = None,
        stops: Collection[int] = (),
        start: int | None = None,
        pad: int = 0,
        batch_tokens: int | None = None,
    ) -> None:
        evaluating = getattr(model, "eval", None)
        if callable(evaluating):
            evaluating()
        self._model = model
        self._device = device
        self._encode = encode
        self._decode = decode
        self._stops = frozenset(stops)
        self._start = () if start is None else (start,)
        self._pad = pad
        self._batch_tokens = batch_tokens
        self.tokens = 0

    @classmethod
    def of(cls, suite: Suite, model: TokenModel, device: str) -> TorchBackend:
        """The backend that a suite describes."""
        common: dict[str, Any] = {
            "device": device,
            "encode": suite.encode,
            "pad": suite.pad,
            "batch_tokens": suite.batch_tokens,
        }
        if isinstance(suite, GenerationSuite):
            return cls(model, decode=suite.decode, stops=suite.stops, **common)
        return cls(model, start=suite.start, **common)

    def describe(self) -> dict[str, Any]:
        told: dict[str, Any] = {"backend": "torch", "device": self._device, "torch": str(torch.__version__)}
        parameters = getattr(self._model, "parameters", None)
        if callable(parameters):
            told["dtype"] = sorted({str(p.dtype).removeprefix("torch.") for p in parameters()})
        return told

    def generate(
        self, prompts: Sequence[str], *, max_new_tokens: int, batch_size: int, progress: Progress
    ) -> list[Completion]:
        assert self._decode is not None, "generation needs a decode"
        decode = self._decode
        rows = [list(self._encode(prompt)) for prompt in prompts]
        for prompt, row in zip(prompts, rows, strict=True):
            if not row:
                raise BadData(f"prompt {prompt!r} has no tokens: encode must return at least one")

        def run(batch: Sequence[int]) -> list[Completion]:
            made = greedy(
                self._model,
                [rows[at] for at in batch],
                max_new_tokens=max_new_tokens,
                stops=self._stops,
                pad_token=self._pad,
                device=self._device,
                between=lambda: progress(done),
            )
            self.tokens += made.computed
            return [Completion(decode(row.tokens), row.tokens, row.finish) for row in made.rows]

        done = 0
        found: list[Completion | None] = [None] * len(rows)
        lengths = [len(row) + max_new_tokens for row in rows]
        for batch, completions in self._batches(lengths, batch_size, run):
            for at, completion in zip(batch, completions, strict=True):
                found[at] = completion
            done += len(batch)
            progress(done)
        return _all(found)

    def loglikelihood(
        self, requests: Sequence[ScoreRequest], *, batch_size: int, progress: Progress
    ) -> list[Likelihood]:
        rows = [self._row(request) for request in requests]

        def run(batch: Sequence[int]) -> list[Likelihood]:
            return scoring.score(
                self._model, [rows[at] for at in batch], pad_token=self._pad, device=self._device
            )

        done = 0
        found: list[Likelihood | None] = [None] * len(rows)
        for batch, scores in self._batches([len(row.tokens) for row in rows], batch_size, run):
            for at, one in zip(batch, scores, strict=True):
                found[at] = one
                self.tokens += len(rows[at].tokens)
            done += len(batch)
            progress(done)
        return _all(found)

    def _row(self, request: ScoreRequest) -> Row:
        before = [*self._start, *(self._encode(request.prefix) if request.prefix else ())]
        text = list(self._encode(request.text))
        if not text:
            raise BadData(f"text {request.text!r} has no tokens: encode must return at least one")
        return Row([*before, *text], max(1, len(before)))

    def _batches(
        self, lengths: Sequence[int], batch_size: int, run: Callable[[Sequence[int]], R]
    ) -> Iterator[tuple[Sequence[int], R]]:
        batches = plan(lengths, rows=batch_size, tokens=self._batch_tokens)
        return run_halving(batches, run, is_out_of_memory=out_of_memory, free=_free)


def out_of_memory(error: Exception) -> bool:
    """Whether a smaller batch may help: CUDA's own error, or the CPU allocator's."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def _free() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _all(found: Sequence[R | None]) -> list[R]:
    got = [one for one in found if one is not None]
    assert len(got) == len(found), "a backend answers every request"
    return got
