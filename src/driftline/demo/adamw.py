"""AdamW as in Loshchilov and Hutter (arXiv 1711.05101), 20 lines.

Why not torch.optim: its first step loads torch's compiler, which here is never used, and four ranks that
start together on two cores would wait for it longer than for all else.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

BETAS = (0.9, 0.98)
EPSILON = 1e-8
WEIGHT_DECAY = 0.01


class AdamW:
    """Decoupled weight decay, bias-corrected moments; the learning rate is given at each step."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self._first = [torch.zeros_like(parameter) for parameter in self._parameters]
        self._second = [torch.zeros_like(parameter) for parameter in self._parameters]
        self._steps = 0

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Moves the parameters against their gradients."""
        self._steps += 1
        first_part, second_part = (1 - beta**self._steps for beta in BETAS)
        for parameter, first, second in zip(self._parameters, self._first, self._second, strict=True):
            assert parameter.grad is not None, "step() comes after backward()"
            first.lerp_(parameter.grad, 1 - BETAS[0])
            second.mul_(BETAS[1]).addcmul_(parameter.grad, parameter.grad, value=1 - BETAS[1])
            spread = (second / second_part).sqrt_().add_(EPSILON)
            parameter.mul_(1 - learning_rate * WEIGHT_DECAY)
            parameter.addcdiv_(first, spread, value=-learning_rate / first_part)

    def clear(self) -> None:
        """Forgets the gradients."""
        for parameter in self._parameters:
            parameter.grad = None
