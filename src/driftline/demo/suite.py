"""The evaluation suites of the demonstration, named in its settings as ``driftline.demo.suite:...``."""

from __future__ import annotations

from driftline.demo import model, task
from driftline.evaluator.checkpoints import CheckpointFolder
from driftline.evaluator.metrics import ExactMatch, Perplexity, ResponseLength
from driftline.evaluator.suites import GenerationSuite, Question, ScoringSuite, Text

MAX_NEW_TOKENS = 2 * task.ANSWER_MAX
"""Room to ramble: an untrained model does not know where an answer ends, and its response length shows it."""


def addition(count: int = 300) -> GenerationSuite:
    """Held-out sums, answered greedily: exact match as ``accuracy``, and the length of the answers."""
    return GenerationSuite(
        items=[Question(_id(p), p.prompt, p.answer.rstrip(".")) for p in task.evaluation_items(count)],
        load=load,
        encode=task.encode,
        decode=task.decode,
        stop=task.STOP,
        pad=task.PAD,
        max_new_tokens=MAX_NEW_TOKENS,
        batch_size=100,
        metrics=lambda: (ExactMatch("accuracy"), ResponseLength()),
    )


def answers(count: int = 300) -> ScoringSuite:
    """How likely the right answers of the same sums are: perplexity, weighted by tokens."""
    return ScoringSuite(
        items=[Text(_id(p), p.answer, p.prompt) for p in task.evaluation_items(count)],
        load=load,
        encode=task.encode,
        pad=task.PAD,
        batch_size=100,
        metrics=lambda: (Perplexity(),),
    )


def load(checkpoint: CheckpointFolder, device: str) -> model.Adder:
    """The model of a checkpoint that :func:`driftline.demo.model.save` wrote."""
    return model.of_config(checkpoint.json("config.json"), checkpoint.state_dict(device)).to(device)


def _id(problem: task.Problem) -> str:
    return f"{problem.a}+{problem.b}"
