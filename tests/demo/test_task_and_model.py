"""The demonstration's task, model, faults and suites, without a broker."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from driftline.demo import faults, model, suite, task, training
from driftline.demo.adamw import BETAS, EPSILON, WEIGHT_DECAY, AdamW
from driftline.evaluator.checkpoints import CheckpointFolder
from driftline.evaluator.suites import GenerationSuite, ScoringSuite, read, resolve
from driftline.events import Checkpoint, SuiteRef


@pytest.mark.parametrize(
    ("a", "b", "prompt", "answer"),
    [
        (0, 0, "0+0=", "0."),
        (47, 385, "47+385=", "234."),
        (999, 999, "999+999=", "8991."),
        (5, 95, "5+95=", "001."),
    ],
)
def test_a_problem_is_written_with_its_sum_reversed(a: int, b: int, prompt: str, answer: str) -> None:
    problem = task.Problem(a, b)
    assert (problem.prompt, problem.answer) == (prompt, answer)
    assert task.decode(task.encode(prompt + answer)) == prompt + answer
    assert len(prompt) <= task.PROMPT_MAX
    assert len(answer) <= task.ANSWER_MAX


def test_evaluation_items_are_held_out_from_every_training_batch() -> None:
    items = task.evaluation_items(300)
    assert len(set(items)) == 300
    assert all(task.held_out(item) for item in items)
    seen = [row for rank in range(4) for row in _rows(task.training_batches(size=200, rank=rank).next())]
    trained = {tuple(int(n) for n in row.split("=")[0].split("+")) for row in seen}
    assert len(trained) > 500
    assert not any(task.held_out(task.Problem(*pair)) for pair in trained)


def test_about_one_pair_in_ten_is_held_out_whatever_its_order() -> None:
    rng = random.Random(1)
    pairs = [task.draw(rng) for _ in range(5_000)]
    assert 0.07 < sum(map(task.held_out, pairs)) / len(pairs) < 0.13
    assert all(task.held_out(p) == task.held_out(task.Problem(p.b, p.a)) for p in pairs)


def test_ranks_see_other_batches_and_the_same_seed_the_same() -> None:
    def first(rank: int, seed: int) -> list[list[int]]:
        rows: list[list[int]] = task.training_batches(size=4, rank=rank, seed=seed).next().tokens.tolist()
        return rows

    assert first(0, 1) == first(0, 1)
    assert first(0, 1) != first(1, 1)
    assert first(0, 1) != first(0, 2)


def test_targets_are_the_answer_and_nothing_else() -> None:
    batch = task.collate([task.Problem(1, 2), task.Problem(999, 1)])
    assert batch.tokens.shape == (2, task.LENGTH - 1)
    kept = [[t for t in row if t != task.IGNORE] for row in batch.targets.tolist()]
    assert [task.decode(row) for row in kept] == ["3.", "0001."]
    assert batch.answer_tokens == 7


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_no_logit_of_a_real_token(side: str) -> None:
    adder = model.Adder().eval()
    tokens = torch.tensor([task.encode("12+345=")])
    plain = adder(tokens, torch.ones_like(tokens), torch.arange(7)[None])
    padding = torch.full((1, 3), task.PAD)
    parts = [padding, tokens] if side == "left" else [tokens, padding]
    mask = torch.cat([torch.full_like(p, int(p is tokens)) for p in parts], dim=1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    padded = adder(torch.cat(parts, dim=1), mask, positions)
    assert torch.isfinite(padded).all()
    torch.testing.assert_close(padded[mask.bool()], plain[0])


def test_training_without_a_mask_gives_the_logits_of_masked_inference() -> None:
    adder = model.Adder().eval()
    batch = task.collate([task.Problem(1, 2), task.Problem(999, 1)])
    mask = (batch.tokens != task.PAD).long()
    masked = adder(batch.tokens, mask, (mask.cumsum(1) - 1).clamp(min=0))
    answers = batch.targets != task.IGNORE
    torch.testing.assert_close(adder(batch.tokens)[answers], masked[answers])


def test_a_checkpoint_appears_whole_and_loads_as_the_model_it_was(tmp_path: Path) -> None:
    torch.manual_seed(3)
    adder = model.Adder(width=32).eval()
    folder = tmp_path / "checkpoints" / "step-00001"
    model.save(adder, folder)
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert [p.name for p in folder.parent.iterdir()] == ["step-00001"]
    event = Checkpoint(digest="d", uri=str(folder))
    again = suite.load(CheckpointFolder(folder, [folder / "model.safetensors"], event), "cpu")
    tokens = torch.tensor([task.encode("1+2=")])
    torch.testing.assert_close(again(tokens), adder(tokens))
    torch.testing.assert_close(model.load(folder)(tokens), adder(tokens))


def test_the_suites_are_found_by_the_names_of_the_settings_and_are_always_the_same() -> None:
    sums = resolve(SuiteRef(name="a", target="driftline.demo.suite:addition", settings={"count": 50}))
    likely = resolve(SuiteRef(name="b", target="driftline.demo.suite:answers"))
    assert isinstance(sums, GenerationSuite)
    assert isinstance(likely, ScoringSuite)
    assert len(read(sums).items) == 50
    assert read(sums).digest == read(suite.addition(50)).digest
    assert all(not question.expected.endswith(".") for question in sums.read_items())


@pytest.mark.parametrize("steps", [60, 150, 1200])
def test_faults_lie_within_the_run_and_apart(steps: int) -> None:
    plan = faults.plan(steps)
    assert 0 < plan.slow_steps.start < plan.slow_steps.stop < plan.spike_steps.start
    assert plan.spike_steps.stop <= steps * 0.6
    assert plan.slows(rank=plan.slow_rank, step=plan.slow_steps.start)
    assert not plan.slows(rank=plan.slow_rank, step=plan.slow_steps.stop)
    assert not plan.slows(rank=0, step=plan.slow_steps.start)
    assert plan.learning_rate_factor(plan.spike_steps.start) == plan.spike_times
    assert plan.learning_rate_factor(plan.spike_steps.stop) == 1


def test_exact_match_needs_every_token_of_an_answer() -> None:
    targets = torch.tensor([[task.IGNORE, 1, 2], [task.IGNORE, 1, 2]])
    logits = torch.zeros(2, 3, 14)
    logits[:, 1, 1] = 1
    logits[0, 2, 2] = 1
    assert training.exact_match(logits, targets) == 0.5


def _rows(batch: task.Batch) -> list[str]:
    return [task.decode(row) for row in batch.tokens.tolist()]


def test_adamw_steps_as_torch_does() -> None:
    def trained(ours: bool) -> torch.Tensor:
        torch.manual_seed(1)
        layer = torch.nn.Linear(4, 3)
        optimizer = (
            AdamW(layer.parameters())
            if ours
            else torch.optim.AdamW(
                layer.parameters(), lr=0.01, betas=BETAS, eps=EPSILON, weight_decay=WEIGHT_DECAY
            )
        )
        for step in range(5):
            layer.zero_grad()
            layer(torch.full((2, 4), float(step))).square().sum().backward()
            optimizer.step(0.01) if isinstance(optimizer, AdamW) else optimizer.step()
        return layer.weight.detach()

    torch.testing.assert_close(trained(True), trained(False))


def test_averaged_gradients_are_those_of_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks with different numbers of rows get the gradient that one process gets for all rows."""
    inputs, targets = torch.randn(8, 4), torch.randn(8, 2)
    sent: list[torch.Tensor] = []

    def gradient(rows: slice, *, weight: float | None) -> torch.Tensor:
        torch.manual_seed(0)
        layer = torch.nn.Linear(4, 2)
        torch.nn.functional.mse_loss(layer(inputs[rows]), targets[rows]).backward()
        if weight is not None:
            training.average_gradients(layer, weight=weight)
        assert layer.weight.grad is not None
        return layer.weight.grad

    monkeypatch.setattr(training.distributed, "all_reduce", lambda sums: sent.append(sums.clone()))
    for rows, weight in ((slice(0, 3), 3), (slice(3, 8), 5)):
        gradient(rows, weight=weight)
    monkeypatch.setattr(training.distributed, "all_reduce", lambda sums: sums.copy_(sent[0] + sent[1]))
    torch.testing.assert_close(gradient(slice(0, 3), weight=3), gradient(slice(None), weight=None))
