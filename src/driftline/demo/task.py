"""The arithmetic that the demonstration learns: addition, written one character at a time.

A problem is ``"47+385="`` and its answer ``"234."``: the sum, lowest digit first (so that carries run in
reading order), closed by a stop character. The addends have one to :data:`DIGITS` digits.

About one pair in ten is *held out*: never seen in training, and the only source of evaluation items, so that
a right answer there was computed and not remembered. Which pairs those are depends on the pair alone, not
on a seed. Everything here is deterministic for a given seed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import torch

DIGITS = 3
CHARACTERS = "0123456789+=. "
PAD = CHARACTERS.index(" ")
STOP = CHARACTERS.index(".")
PROMPT_MAX = 2 * DIGITS + 2
ANSWER_MAX = DIGITS + 2
"""Longest right answer in tokens, with its stop."""
LENGTH = PROMPT_MAX + ANSWER_MAX
HELD_OUT_ONE_IN = 10

_INDEX = {character: index for index, character in enumerate(CHARACTERS)}
IGNORE = -100
"""Target of a position that is not part of an answer."""


class Problem(NamedTuple):
    a: int
    b: int

    @property
    def prompt(self) -> str:
        return f"{self.a}+{self.b}="

    @property
    def answer(self) -> str:
        """With the stop character.

        >>> Problem(47, 385).answer
        '234.'
        """
        return str(self.a + self.b)[::-1] + "."


def encode(text: str) -> list[int]:
    """Token ids of a text of :data:`CHARACTERS`. Raises KeyError for any other character."""
    return [_INDEX[character] for character in text]


def decode(tokens: Sequence[int]) -> str:
    """Reads what :func:`encode` wrote."""
    return "".join(CHARACTERS[token] for token in tokens)


def held_out(problem: Problem) -> bool:
    """Whether training must not see the pair; the same for (a, b) and (b, a).

    >>> held_out(Problem(3, 812)) == held_out(Problem(812, 3))
    True
    """
    low, high = sorted(problem)
    mixed = (low * 0x9E3779B1 ^ high * 0x85EBCA77) & 0xFFFFFFFF
    mixed = (mixed ^ mixed >> 15) * 0x2C1B3C6D & 0xFFFFFFFF
    return (mixed >> 7) % HELD_OUT_ONE_IN == 0


def draw(rng: random.Random) -> Problem:
    """A random pair; the number of digits of each addend is drawn first, so that short ones are not rare."""
    return Problem(*(rng.randrange(10 ** rng.randint(1, DIGITS)) for _ in range(2)))


def evaluation_items(count: int, *, seed: int = 7) -> list[Problem]:
    """``count`` different held-out problems, the same in every process."""
    rng = random.Random(seed)
    chosen: dict[Problem, None] = {}
    while len(chosen) < count:
        problem = draw(rng)
        if held_out(problem):
            chosen[problem] = None
    return list(chosen)


class Batch(NamedTuple):
    """``tokens`` and ``targets`` are [size, LENGTH - 1]; targets are :data:`IGNORE` outside answers."""

    tokens: torch.Tensor
    targets: torch.Tensor

    @property
    def answer_tokens(self) -> int:
        return int((self.targets != IGNORE).sum())


def training_batches(*, size: int, rank: int, seed: int = 0) -> BatchStream:
    """An endless stream of training batches, another one for each rank."""
    return BatchStream(random.Random(f"{seed}/{rank}"), size)


class BatchStream:
    """Draws batches of problems that are not held out."""

    def __init__(self, rng: random.Random, size: int) -> None:
        self._rng = rng
        self._size = size

    def next(self) -> Batch:
        problems: list[Problem] = []
        while len(problems) < self._size:
            problem = draw(self._rng)
            if not held_out(problem):
                problems.append(problem)
        return collate(problems)


def collate(problems: list[Problem]) -> Batch:
    """Problems as right-padded tokens, with the next token as target inside answers only."""
    rows, targets = [], []
    for problem in problems:
        prompt, answer = encode(problem.prompt), encode(problem.answer)
        whole = prompt + answer
        padding = LENGTH - len(whole)
        rows.append(whole[:-1] + [PAD] * padding)
        targets.append([IGNORE] * (len(prompt) - 1) + answer + [IGNORE] * padding)
    return Batch(torch.tensor(rows), torch.tensor(targets))
