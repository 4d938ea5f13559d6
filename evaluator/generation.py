"""Batched greedy generation that gives what one prompt at a time would give.

Prompts are padded on the left, so that every row's next token is read at the last column; the mask hides the
padding and positions count real tokens. Rows that are done leave the batch. The whole sequence is computed
again for every token: right for small models, and free of cache handling that could differ from it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import torch

from driftline.evaluator.backend import FinishReason
from driftline.evaluator.batching import pad
from driftline.evaluator.suites import TokenModel


class Generated(NamedTuple):
    """Tokens of one response without the stop token."""

    tokens: tuple[int, ...]
    finish: FinishReason


class Batch(NamedTuple):
    """Responses in row order, and how many real tokens the model computed."""

    rows: list[Generated]
    computed: int


@torch.inference_mode()
def greedy(
    model: TokenModel,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    stops: Collection[int],
    pad_token: int,
    device: str,
    between: Callable[[], None] = lambda: None,
) -> Batch:
    """Continues each prompt with the likeliest token until a stop token or the limit.

    ``between`` is called after every token; it may raise to stop the work.

    Without stop tokens a response that reaches the limit has finished ("stop").
    """
    padded = pad(prompts, side="left", token=pad_token)
    tokens, mask, places = (torch.from_numpy(array).to(device) for array in padded)
    responses: list[list[int]] = [[] for _ in prompts]
    finish: list[FinishReason] = ["length" if stops else "stop"] * len(prompts)
    running = list(range(len(prompts)))
    computed = 0
    for _ in range(max_new_tokens):
        logits = checked(model(tokens, mask, places), tokens)[:, -1]
        computed += int(mask.sum())
        chosen = logits.argmax(dim=-1)
        finite = torch.isfinite(logits.amax(dim=-1)).tolist()
        keep: list[int] = []
        for row, (item, token) in enumerate(zip(running, chosen.tolist(), strict=True)):
            if not finite[row]:
                finish[item] = "non_finite"
            elif token in stops:
                finish[item] = "stop"
            else:
                responses[item].append(token)
                keep.append(row)
        if not keep:
            break
        between()
        running = [running[row] for row in keep]
        tokens, mask, places = _extend(tokens, mask, places, chosen, keep)
    return Batch([Generated(tuple(r), f) for r, f in zip(responses, finish, strict=True)], computed)


def _extend(
    tokens: torch.Tensor, mask: torch.Tensor, places: torch.Tensor, chosen: torch.Tensor, keep: list[int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The rows that go on, each with its new token; columns that are padding in all of them are cut off."""
    rows = torch.tensor(keep, device=tokens.device)
    tokens = torch.cat([tokens[rows], chosen[rows, None]], dim=1)
    mask = torch.cat([mask[rows], mask.new_ones(len(keep), 1)], dim=1)
    places = torch.cat([places[rows], places[rows, -1:] + 1], dim=1)
    first = int(mask.amax(dim=0).argmax())
    return tokens[:, first:], mask[:, first:], places[:, first:]


def checked(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The logits. Raises ValueError when they do not have the shape [rows, tokens, vocabulary]."""
    if logits.ndim != 3 or logits.shape[:2] != tokens.shape:
        raise ValueError(
            f"the model returned logits of shape {tuple(logits.shape)} for tokens of shape "
            f"{tuple(tokens.shape)}; it must be [rows, tokens, vocabulary]"
        )
    return logits
