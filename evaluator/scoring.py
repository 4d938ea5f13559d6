"""Log-likelihood of texts in batches, equal to one text at a time.

Rows are padded on the right: a causal model cannot look at what comes later, and the mask hides it from
others. Only real tokens that have something before them are scored, with a log-softmax in float32 on their
positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from driftline.evaluator.backend import Likelihood
from driftline.evaluator.batching import pad
from driftline.evaluator.generation import checked
from driftline.evaluator.suites import TokenModel


class Row(NamedTuple):
    """Tokens of one text with what stands before it; scored are those from ``first`` (at least 1)."""

    tokens: Sequence[int]
    first: int


@torch.inference_mode()
def score(model: TokenModel, rows: Sequence[Row], *, pad_token: int, device: str) -> list[Likelihood]:
    """Log-likelihood of each row's scored tokens; a row without any gets 0 of 0 tokens."""
    padded = pad([row.tokens for row in rows], side="right", token=pad_token)
    tokens, mask, places = (torch.from_numpy(array).to(device) for array in padded)
    logits = checked(model(tokens, mask, places), tokens)
    results = []
    for at, row in enumerate(rows):
        end = len(row.tokens)
        if row.first >= end:
            results.append(Likelihood(0.0, 0))
            continue
        chances = torch.log_softmax(logits[at, row.first - 1 : end - 1].float(), dim=-1)
        taken = chances.gather(1, tokens[at, row.first : end, None])
        results.append(Likelihood(float(taken.double().sum()), end - row.first))
    return results
