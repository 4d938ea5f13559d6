"""The model that the demonstration trains: a causal transformer of two layers, about 230,000 weights.

It takes what the evaluator's torch backend hands over: ``model(tokens[B, T], attention_mask[B, T],
position_ids[B, T]) -> logits[B, T, V]``. Padding on either side changes no logit of a real token, as
positions come from ``position_ids`` and padded keys are masked. Saved and loaded as a folder of
``config.json`` and ``model.safetensors``.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

from driftline.demo import task

WIDTH = 96
LAYERS = 2
HEADS = 4


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        widened: torch.Tensor = functional.gelu(self.up(self.norm_mlp(x)))
        narrowed: torch.Tensor = self.down(widened)
        return x + narrowed


class Adder(nn.Module):
    """``forward`` without a mask is for right-padded training batches, where causality hides the padding."""

    def __init__(self, *, width: int = WIDTH, layers: int = LAYERS, heads: int = HEADS) -> None:
        super().__init__()
        self.shape = {"width": width, "layers": layers, "heads": heads}
        self.token = nn.Embedding(len(task.CHARACTERS), width)
        # Longer than any problem: an untrained model may generate past the longest answer.
        self.position = nn.Embedding(2 * task.LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(task.CHARACTERS))

    def forward(
        self,
        tokens: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        length = tokens.shape[1]
        if position_ids is None:
            position_ids = torch.arange(length, device=tokens.device).expand_as(tokens)
        mask = None if attention_mask is None else _causal(attention_mask)
        x = self.token(tokens) + self.position(position_ids.clamp(0, self.position.num_embeddings - 1))
        for block in self.blocks:
            x = block(x, mask)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def _causal(attention_mask: torch.Tensor) -> torch.Tensor:
    """[B, 1, T, T]: a query sees real keys up to itself, and always itself (padding needs one)."""
    length = attention_mask.shape[1]
    square = torch.ones(length, length, dtype=torch.bool, device=attention_mask.device)
    mask = square.tril() & attention_mask.bool()[:, None, :]
    return (mask | torch.eye(length, dtype=torch.bool, device=mask.device))[:, None]


def save(model: Adder, folder: Path) -> None:
    """Writes the folder under another name, then renames it: it is never seen half written."""
    unfinished = folder.with_name(folder.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    config = {"architecture": "driftline.demo.model:Adder", "characters": task.CHARACTERS, **model.shape}
    (unfinished / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(
        {name: value.contiguous() for name, value in model.state_dict().items()},
        unfinished / "model.safetensors",
    )
    os.replace(unfinished, folder)


def load(folder: Path) -> Adder:
    """The model of a folder that :func:`save` wrote, in evaluation mode."""
    return of_config(
        json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    )


def of_config(config: Mapping[str, Any], weights: Mapping[str, torch.Tensor]) -> Adder:
    """The model that ``config.json`` describes with these weights. Raises KeyError, RuntimeError."""
    model = Adder(width=config["width"], layers=config["layers"], heads=config["heads"])
    model.load_state_dict(weights)
    return model.eval()
