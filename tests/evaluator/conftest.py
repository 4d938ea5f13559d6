"""A tiny fixed model in float32, suites over it, and checkpoints on disk."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from driftline.evaluator.suites import GenerationSuite, Question, ScoringSuite, Text
from driftline.events import Checkpoint, FileEntry

LETTERS = "_.abcdefghijklmnopqrstuvwxyz0123456789+= "
STOP = 1


class TinyModel(torch.nn.Module):
    """One causal attention layer with learned positions; ``bug`` plants one of the padding mistakes."""

    def __init__(self, *, seed: int = 0, width: int = 16, bug: str = "") -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def made(*shape: int) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.randn(*shape, generator=generator) / shape[-1] ** 0.5)

        vocabulary = len(LETTERS)
        self.embed, self.place = made(vocabulary, width), made(128, width)
        self.qkv, self.out, self.head = made(3 * width, width), made(width, width), made(vocabulary, width)
        self.bug = bug

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        if self.bug == "positions":
            places = torch.arange(length, device=tokens.device).expand_as(tokens)
        x = 3 * (self.embed[tokens] + self.place[places])
        q, k, v = (x @ self.qkv.T).chunk(3, dim=-1)
        see = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()[None]
        if self.bug != "mask":
            see = see & (mask[:, None, :] == 1)
        weights = (q @ k.transpose(1, 2)).masked_fill(~see, -1e9).softmax(-1)
        return (x + (weights @ v) @ self.out.T) @ self.head.T * 3


def encode(text: str) -> list[int]:
    return [LETTERS.index(letter) for letter in text]


def decode(tokens: Sequence[int]) -> str:
    return "".join(LETTERS[token] for token in tokens)


PROMPTS = ("a", "12+7=", "hello there ", "the quick brown fox jumps over it", "9=", "abc", "x+y+z=")


def generation_suite(**changes: object) -> GenerationSuite:
    given: dict[str, object] = {
        "load": lambda checkpoint, device: _loaded(checkpoint, device),
        "items": [Question(f"q{n}", prompt, "x") for n, prompt in enumerate(PROMPTS)],
        "encode": encode,
        "decode": decode,
        "stop": STOP,
        "max_new_tokens": 12,
        "batch_size": 4,
    }
    return GenerationSuite(**(given | changes))  # type: ignore[arg-type]


def scoring_suite(**changes: object) -> ScoringSuite:
    given: dict[str, object] = {
        "load": lambda checkpoint, device: _loaded(checkpoint, device),
        "items": [Text(f"t{n}", text) for n, text in enumerate(PROMPTS)],
        "encode": encode,
    }
    return ScoringSuite(**(given | changes))  # type: ignore[arg-type]


def _loaded(checkpoint: object, device: str) -> TinyModel:
    model = TinyModel()
    model.load_state_dict(checkpoint.state_dict(device))  # type: ignore[attr-defined]
    return model.to(device)


def write_checkpoint(folder: Path, *, seed: int = 0, shards: int = 1) -> Checkpoint:
    """A whole checkpoint folder and the event that announces it."""
    folder.mkdir(parents=True)
    tensors = {name: value.detach().clone() for name, value in TinyModel(seed=seed).state_dict().items()}
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
    else:
        weight_map = {}
        for at in range(shards):
            name = f"model-{at + 1:05d}-of-{shards:05d}.safetensors"
            part = {key: tensors[key] for key in sorted(tensors)[at::shards]}
            save_file(part, folder / name)
            weight_map |= dict.fromkeys(part, name)
        index = {"metadata": {}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text("{}")
    files = [FileEntry(file.name, file.stat().st_size) for file in sorted(folder.iterdir())]
    return Checkpoint(digest=f"d{seed}", uri=str(folder), step=10, files=files)


class Tiny:
    """What the tests of this folder use."""

    Model = TinyModel
    encode = staticmethod(encode)
    decode = staticmethod(decode)
    prompts = PROMPTS
    stop = STOP
    generation = staticmethod(generation_suite)
    scoring = staticmethod(scoring_suite)
    write = staticmethod(write_checkpoint)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Tiny tensors gain nothing from threads, and tests share the machine."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny() -> type[Tiny]:
    return Tiny
