"""The suite of the kill loop: a table of next-token scores as the model; slow enough to be killed at work."""

from __future__ import annotations

import time
from typing import Any

import torch

from driftline.evaluator.suites import ScoringSuite, Text

LETTERS = "abcdefghijklmnopqrstuvwxyz "
TEXTS = ("the quick brown fox", "jumps over", "a lazy dog", "and runs", "far away from here")
LOAD_S = 0.7


class Bigrams(torch.nn.Module):
    """Scores of the next letter, by the letter."""

    def __init__(self, scores: torch.Tensor) -> None:
        super().__init__()
        self.scores = torch.nn.Parameter(scores)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return self.scores[tokens]


def load(checkpoint: Any, device: str) -> Bigrams:
    time.sleep(LOAD_S)
    return Bigrams(checkpoint.state_dict(device)["scores"]).to(device)


suite = ScoringSuite(
    load=load,
    items=[Text(f"t{at}", text) for at, text in enumerate(TEXTS)],
    encode=lambda text: [LETTERS.index(letter) for letter in text],
)
