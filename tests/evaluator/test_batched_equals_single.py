"""Batched inference gives the scores of single items (case 35), and the tests would see it if it did not."""

from __future__ import annotations

import math
import random
import string
from typing import Any

import pytest
import torch

from driftline.evaluator.backend import ScoreRequest
from driftline.evaluator.batching import pad, plan, run_halving
from driftline.evaluator.generation import greedy
from driftline.evaluator.torch_backend import TorchBackend, out_of_memory


def quiet(done: int) -> None:
    del done


def backend(tiny: Any, *, bug: str = "", **changes: Any) -> TorchBackend:
    given = {"device": "cpu", "encode": tiny.encode, "decode": tiny.decode, "stops": {tiny.stop}}
    return TorchBackend(tiny.Model(bug=bug), **(given | changes))


def texts(tiny: Any) -> list[str]:
    """7 texts of 3 to 40 tokens."""
    randomness = random.Random(5)
    lengths = (3, 40, 7, 18, 5, 29, 12)
    return ["".join(randomness.choices(string.ascii_lowercase, k=k)) for k in lengths]


@pytest.mark.parametrize("batch", [2, 3, 7])
@pytest.mark.parametrize("pad_token", [0, 1, 7])
def test_scores_do_not_depend_on_the_batch(tiny: Any, batch: int, pad_token: int) -> None:
    requests = [ScoreRequest("", text) for text in texts(tiny)]
    model = backend(tiny, pad=pad_token)
    alone = model.loglikelihood(requests, batch_size=1, progress=quiet)
    together = model.loglikelihood(requests, batch_size=batch, progress=quiet)
    assert [one.tokens for one in together] == [len(text) - 1 for text in texts(tiny)]
    for one, other in zip(alone, together, strict=True):
        assert one.loglikelihood / one.tokens == pytest.approx(other.loglikelihood / other.tokens, abs=1e-5)


@pytest.mark.parametrize("batch", [2, 3, 7])
@pytest.mark.parametrize("pad_token", [0, 1, 7])
def test_greedy_responses_do_not_depend_on_the_batch(tiny: Any, batch: int, pad_token: int) -> None:
    prompts = [*tiny.prompts, *texts(tiny)]
    model = backend(tiny, pad=pad_token)
    alone = model.generate(prompts, max_new_tokens=20, batch_size=1, progress=quiet)
    together = model.generate(prompts, max_new_tokens=20, batch_size=batch, progress=quiet)
    assert together == alone
    assert len({one.text for one in alone}) > 5, (
        "the model must say different things for this to test anything"
    )
    assert {one.finish for one in alone} == {"stop", "length"}, "some must leave the batch early"


@pytest.mark.parametrize("bug", ["mask", "positions"])
def test_a_planted_padding_bug_is_seen(tiny: Any, bug: str) -> None:
    prompts = [*tiny.prompts, *texts(tiny)]
    model = backend(tiny, bug=bug)
    alone = model.generate(prompts, max_new_tokens=20, batch_size=1, progress=quiet)
    assert model.generate(prompts, max_new_tokens=20, batch_size=7, progress=quiet) != alone


def test_greedy_is_the_argmax_of_the_unpadded_sequence(tiny: Any) -> None:
    """An oracle without batching code."""
    model = tiny.Model()
    for prompt in tiny.prompts:
        row = tiny.encode(prompt)
        for _ in range(12):
            tokens = torch.tensor([row])
            logits = model(tokens, torch.ones_like(tokens), torch.arange(len(row))[None])
            if (token := int(logits[0, -1].argmax())) == tiny.stop:
                break
            row.append(token)
        made = greedy(
            model, [tiny.encode(prompt)], max_new_tokens=12, stops={tiny.stop}, pad_token=0, device="cpu"
        )
        assert made.rows[0].tokens == tuple(row[len(prompt) :])


def test_likelihood_is_the_sum_over_scored_tokens_after_prefix_and_start(tiny: Any) -> None:
    model = backend(tiny, start=2)
    (got,) = model.loglikelihood([ScoreRequest("ab", "cde")], batch_size=1, progress=quiet)
    row = torch.tensor([[2, *tiny.encode("abcde")]])
    chances = tiny.Model()(row, torch.ones_like(row), torch.arange(6)[None]).detach().log_softmax(-1)[0]
    wanted = sum(float(chances[at - 1, row[0, at]]) for at in (3, 4, 5))
    assert got.tokens == 3
    assert got.loglikelihood == pytest.approx(wanted, abs=1e-5)


def test_a_text_of_one_token_without_start_has_nothing_to_score(tiny: Any) -> None:
    got = backend(tiny).loglikelihood([ScoreRequest("", "a")], batch_size=1, progress=quiet)
    assert got == [(0.0, 0)]


def test_a_model_that_gives_nan_ends_the_response_as_non_finite(tiny: Any) -> None:
    def broken(tokens: torch.Tensor, mask: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return torch.full((*tokens.shape, 4), math.nan)

    made = greedy(broken, [[1], [2, 3]], max_new_tokens=3, stops=(), pad_token=0, device="cpu")
    assert [row.finish for row in made.rows] == ["non_finite", "non_finite"]


def test_logits_of_another_shape_are_refused_with_the_shape_wanted(tiny: Any) -> None:
    with pytest.raises(ValueError, match=r"\[rows, tokens, vocabulary\]"):
        greedy(lambda t, m, p: t.float(), [[1]], max_new_tokens=1, stops=(), pad_token=0, device="cpu")


@pytest.mark.parametrize(
    ("lengths", "rows", "tokens", "wanted"),
    [
        ([], 4, None, []),
        ([5], 4, None, [[0]]),
        ([2, 2, 2], 2, None, [[0, 1], [2]]),
        ([1, 5, 3], 2, None, [[1, 2], [0]]),
        ([100, 1], 8, 10, [[0], [1]]),
        ([4, 4, 4, 4], 8, 8, [[0, 1], [2, 3]]),
    ],
)
def test_plans(lengths: list[int], rows: int, tokens: int | None, wanted: list[list[int]]) -> None:
    assert plan(lengths, rows=rows, tokens=tokens) == wanted


@pytest.mark.parametrize(
    ("side", "tokens", "positions"),
    [
        ("left", [[9, 9, 5], [1, 2, 3]], [[0, 0, 0], [0, 1, 2]]),
        ("right", [[5, 9, 9], [1, 2, 3]], [[0, 0, 0], [0, 1, 2]]),
    ],
)
def test_padding(side: Any, tokens: list[list[int]], positions: list[list[int]]) -> None:
    padded = pad([[5], [1, 2, 3]], side=side, token=9)
    assert padded.tokens.tolist() == tokens
    assert padded.positions.tolist() == positions
    assert padded.mask.sum(axis=1).tolist() == [1, 3]


def test_a_batch_that_does_not_fit_is_halved_and_later_ones_too() -> None:
    seen: list[int] = []

    def run(batch: Any) -> list[int]:
        seen.append(len(batch))
        if len(batch) > 3:
            raise torch.OutOfMemoryError("planted")
        return [10 * at for at in batch]

    batches = [list(range(8)), list(range(8, 16))]
    results = dict(
        pair
        for batch, values in run_halving(batches, run, is_out_of_memory=out_of_memory)
        for pair in zip(batch, values, strict=True)
    )
    assert results == {at: 10 * at for at in range(16)}
    assert seen[:2] == [8, 4]
    assert max(seen[2:]) <= 2


def test_one_row_that_does_not_fit_is_an_error_and_other_errors_are_not_halved() -> None:
    def too_big(batch: Any) -> None:
        raise torch.OutOfMemoryError("planted")

    def wrong(batch: Any) -> None:
        calls.append(batch)
        raise RuntimeError("shape mismatch")

    calls: list[Any] = []
    with pytest.raises(torch.OutOfMemoryError):
        list(run_halving([[0, 1]], too_big, is_out_of_memory=out_of_memory))
    with pytest.raises(RuntimeError, match="shape"):
        list(run_halving([[0, 1]], wrong, is_out_of_memory=out_of_memory))
    assert len(calls) == 1
