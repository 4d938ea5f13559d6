"""One evaluation without Kafka: numbers, items, self-check, and a status for everything that goes wrong."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
import torch

from driftline.clock import ManualClock
from driftline.errors import SettingsError
from driftline.evaluator.desk import Stopped
from driftline.evaluator.job import Job, Runner, SuiteShelf
from driftline.evaluator.metrics import ItemOutcome
from driftline.evaluator.suites import Question, Text, check_target, read, resolve
from driftline.events import Checkpoint, Metric, SuiteRef, to_float
from driftline.settings import EvaluatorSettings

REF = SuiteRef(name="tiny", target="tiny_suites:suite")


@pytest.fixture
def module() -> Iterator[ModuleType]:
    """An importable module that tests put suites into."""
    made = ModuleType("tiny_suites")
    made.__spec__ = ModuleSpec("tiny_suites", None)
    sys.modules["tiny_suites"] = made
    yield made
    del sys.modules["tiny_suites"]


Run = Callable[..., Job]


@pytest.fixture
def run(module: ModuleType, tiny: Any, tmp_path: Path) -> Run:
    """Runs one lease on the CPU; waiting takes no time."""

    def go(suite: Any, *, ref: SuiteRef = REF, checkpoint: Checkpoint | None = None, **calls: Any) -> Job:
        module.suite = suite  # type: ignore[attr-defined]
        clock = ManualClock()
        runner = Runner(EvaluatorSettings(wait_us=5_000_000), SuiteShelf([REF]), device="cpu", clock=clock)
        folder = tmp_path / "step-10"
        if checkpoint is None:
            checkpoint = (
                tiny.write(folder) if not folder.exists() else Checkpoint(digest="d", uri=str(folder))
            )
        given = {"progress": lambda done, total: None, "sleep": clock.advance} | calls
        return runner.run(ref, checkpoint, **given)

    return go


def metric(job: Job, name: str) -> Metric:
    return next(one for one in job.outcome.metrics if one.name == name)


def test_generation_gives_numbers_with_intervals_and_an_outcome_per_item(run: Run, tiny: Any) -> None:
    made = {item.item: item for item in run(tiny.generation()).items}
    items = [
        Question(name, prompt, made[name].response) for name, prompt in zip(made, tiny.prompts, strict=True)
    ]
    items[0] = items[0]._replace(expected="something else")
    job = run(tiny.generation(items=items))
    statuses = [item.status for item in job.items]
    correct = statuses.count("correct")
    accuracy = metric(job, "exact_match")
    assert job.outcome.status == "done"
    assert job.outcome.items == len(job.items) == 7
    assert 0 < correct < 7
    assert accuracy.value == pytest.approx(correct / 7)
    assert accuracy.low is not None
    assert accuracy.high is not None
    assert to_float(accuracy.low) < correct / 7 < to_float(accuracy.high)
    assert metric(job, "response_length").unit == "tokens"
    assert job.outcome.settings["statuses"] == {s: statuses.count(s) for s in set(statuses)}
    assert job.outcome.settings["self_check"] == {"items": 4, "different_responses": 0, "passed": True}
    assert job.outcome.settings["dtype"] == ["float32"]
    assert len(job.outcome.weights_digest) == 64
    assert job.outcome.suite_digest
    assert job.outcome.cost.tokens > 0


@pytest.mark.parametrize("batch", [2, 7])
def test_perplexity_does_not_depend_on_the_batch(run: Run, tiny: Any, batch: int) -> None:
    """Case 35: equal to 1e-5, over real tokens only."""
    alone = metric(run(tiny.scoring(batch_size=1)), "perplexity")
    together = metric(run(tiny.scoring(batch_size=batch)), "perplexity")
    assert to_float(together.value) == pytest.approx(to_float(alone.value), rel=1e-5)
    assert together.count == sum(len(prompt) - 1 for prompt in tiny.prompts)


def test_a_response_that_has_not_stopped_is_truncated_whatever_it_says(run: Run, tiny: Any) -> None:
    job = run(tiny.generation(max_new_tokens=1, grade=lambda response, question: True))
    assert {item.status for item in job.items} <= {"truncated", "correct"}
    assert [item.status for item in job.items].count("truncated") > 0


def test_an_empty_response_is_no_answer(run: Run, tiny: Any) -> None:
    job = run(tiny.generation(decode=lambda tokens: "  ", stop=None))
    assert {item.status for item in job.items} == {"no_answer"}
    assert metric(job, "exact_match").value == 0.0


@pytest.mark.parametrize("bug", ["mask", "positions"])
def test_a_model_that_ignores_padding_is_reported_with_its_numbers(run: Run, tiny: Any, bug: str) -> None:
    """The planted padding bug in the model of a user is caught by the self-check."""
    items = [Question(f"q{n}", "ab" * (1 + 5 * (n % 8)) + str(n), "x") for n in range(10)]
    suite = tiny.generation(load=lambda c, d: tiny.Model(bug=bug), items=items, batch_size=10, check_items=10)
    job = run(suite)
    assert job.outcome.status == "done"
    assert job.outcome.settings["self_check"]["passed"] is False
    assert "attention_mask" in job.outcome.reason


def test_a_scoring_model_that_depends_on_the_batch_is_reported(run: Run, tiny: Any) -> None:
    def noisy(tokens: torch.Tensor, mask: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = tiny.Model()(tokens, mask, places)
        return logits * len(tokens)

    job = run(tiny.scoring(load=lambda c, d: noisy))
    assert job.outcome.settings["self_check"]["passed"] is False
    assert job.outcome.settings["self_check"]["loglikelihood_per_token_difference_max"] > 1e-3


def test_a_model_of_nans_gives_nan_perplexity_and_no_answers(run: Run, tiny: Any) -> None:
    def broken(tokens: torch.Tensor, mask: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return torch.full((*tokens.shape, 42), math.nan)

    assert metric(run(tiny.scoring(load=lambda c, d: broken)), "perplexity").value == "NaN"
    job = run(tiny.generation(load=lambda c, d: broken))
    assert {item.status for item in job.items} == {"no_answer"}


def raising(*args: Any, **kwargs: Any) -> Any:
    raise ZeroDivisionError("planted in suite code")


class Raiser:
    """A suite of which one part raises or is wrong."""

    def __init__(self, kind: str = "generation", **changes: Any) -> None:
        self.kind, self.changes = kind, changes

    def make(self, tiny: Any) -> Any:
        return getattr(tiny, self.kind)(**self.changes)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (Raiser(load=raising), "ZeroDivisionError: planted"),
        (Raiser(encode=raising), "ZeroDivisionError: planted"),
        (Raiser(decode=raising), "ZeroDivisionError: planted"),
        (Raiser(items=raising), "ZeroDivisionError: planted"),
        (Raiser(grade=raising), "ZeroDivisionError: planted"),
        (Raiser(metrics=raising), "ZeroDivisionError: planted"),
        (Raiser(load=lambda c, d: raising), "ZeroDivisionError: planted"),
        (Raiser(load=lambda c, d: 3), "load returned a int"),
        (Raiser(items=[]), "0 items"),
        (Raiser(items=[Question("a", "b", "c")] * 2), "same id"),
        (Raiser(grade=lambda r, q: "fine"), "grade returned 'fine'"),
        (Raiser(encode=lambda text: []), "no tokens"),
        (Raiser(kind="scoring", encode=lambda text: []), "no tokens"),
    ],
)
def test_suite_code_that_raises_fails_with_the_reason_and_no_number(
    run: Run, tiny: Any, broken: Raiser, reason: str
) -> None:
    job = run(broken.make(tiny))
    assert job.outcome.status == "failed"
    assert reason in job.outcome.reason
    assert job.outcome.metrics == []
    assert job.items == []


def test_the_reason_shows_the_last_line_of_code(run: Run, tiny: Any) -> None:
    reason = run(tiny.generation(load=raising)).outcome.reason
    assert 'raise ZeroDivisionError("planted in suite code")' in reason
    assert "test_evaluation.py" in reason


def test_the_reason_is_the_whole_message_and_names_the_users_own_code(run: Run, tiny: Any) -> None:
    """F35: what does not fit stands in the second line, and a frame of torch says nothing."""

    def load(*_: Any) -> Any:
        return torch.nn.Linear(3, 2).load_state_dict({"weight": torch.zeros(5, 5), "bias": torch.zeros(2)})

    reason = run(tiny.generation(load=load)).outcome.reason
    assert "Error(s) in loading state_dict for Linear: size mismatch for weight" in reason
    assert "torch.Size([5, 5])" in reason
    assert "(test_evaluation.py:" in reason
    assert "load_state_dict({" in reason
    assert "\n" not in reason


def test_a_grader_that_raises_for_some_items_leaves_them_out_and_says_so(run: Run, tiny: Any) -> None:
    def grade(response: str, question: Question) -> bool:
        return bool(raising()) if question.id == "q0" else True

    job = run(tiny.generation(stop=None, grade=grade))
    assert [item.status for item in job.items] == ["grader_error"] + ["correct"] * 6
    assert (metric(job, "exact_match").value, metric(job, "exact_match").count) == (1.0, 6)
    assert "ZeroDivisionError" in job.outcome.reason


@pytest.mark.parametrize(
    ("target", "remedy"),
    [
        (REF.target, "it is a int"),
        ("tiny_suites:nothing", "has no nothing"),
        ("no_such_module:suite", "start the evaluator in its folder"),
        ("no-such-entry-point", 'or write "module:attribute"'),
        ("tiny_suites:", "module:attribute"),
    ],
)
def test_a_target_that_is_no_suite_is_an_error_with_a_remedy(
    module: ModuleType, target: str, remedy: str
) -> None:
    module.suite = 3  # type: ignore[attr-defined]
    with pytest.raises(SettingsError, match=remedy) as caught:
        resolve(SuiteRef(name="tiny", target=target))
    assert caught.value.key == "evaluation.suites.tiny.target"


def test_a_function_gets_the_settings_of_the_yaml(module: ModuleType, tiny: Any) -> None:
    module.suite = lambda batch: tiny.generation(batch_size=batch)  # type: ignore[attr-defined]
    ref = msgspec.structs.replace(REF, settings={"batch": 3})
    check_target(ref)
    assert resolve(ref).batch_size == 3


def test_a_ready_suite_takes_no_settings(module: ModuleType, tiny: Any) -> None:
    module.suite = tiny.generation()  # type: ignore[attr-defined]
    with pytest.raises(SettingsError, match="name a function"):
        resolve(msgspec.structs.replace(REF, settings={"batch": 3}))


def test_a_module_in_the_working_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here_only_suites.py").write_text("suite = 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    check_target(SuiteRef(name="x", target="here_only_suites:suite"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": "other"}, "only suites named there are run"),
        ({"target": "os:system"}, "same file"),
        ({"version": "2"}, "same file"),
        ({"settings": {"n": 1}}, "same file"),
    ],
)
def test_a_suite_that_is_not_in_the_own_settings_is_refused_and_not_imported(
    run: Run, module: ModuleType, change: dict[str, Any], reason: str
) -> None:
    job = run(lambda: pytest.fail("imported"), ref=msgspec.structs.replace(REF, **change))
    assert (job.outcome.status, job.outcome.metrics) == ("failed", [])
    assert reason in job.outcome.reason


def test_items_are_read_once_for_many_checkpoints(
    run: Run, module: ModuleType, tiny: Any, tmp_path: Path
) -> None:
    reads: list[int] = []

    def items() -> list[Question]:
        reads.append(1)
        return [Question("a", "1+1=", "2")]

    module.suite = tiny.generation(items=items)  # type: ignore[attr-defined]
    shelf = SuiteShelf([REF])
    assert shelf.take(REF).digest == shelf.take(REF).digest == read(tiny.generation(items=items())).digest
    assert len(reads) == 2, "once by the shelf, once by this test"


@pytest.mark.parametrize(("status", "prepare"), [("gone", "nothing"), ("incomplete", "empty folder")])
def test_a_checkpoint_that_is_not_whole_has_a_status_and_no_number(
    run: Run, tiny: Any, tmp_path: Path, status: str, prepare: str
) -> None:
    folder = tmp_path / "other"
    if prepare == "empty folder":
        folder.mkdir()
    job = run(tiny.generation(), checkpoint=Checkpoint(digest="d", uri=str(folder)))
    assert (job.outcome.status, job.outcome.metrics, job.items) == (status, [], [])
    assert job.outcome.cost.wait_seconds == 5.0
    assert job.outcome.cost.seconds == 0.0


def test_weights_deleted_while_loading_are_gone_not_failed(run: Run, tiny: Any) -> None:
    def load(checkpoint: Any, device: str) -> Any:
        for file in checkpoint.path.iterdir():
            file.unlink()
        checkpoint.path.rmdir()
        return checkpoint.state_dict(device)

    job = run(tiny.generation(load=load))
    assert (job.outcome.status, job.outcome.metrics) == ("gone", [])


def test_tensors_of_another_dtype_than_their_bytes_are_unreadable(
    run: Run, tiny: Any, tmp_path: Path
) -> None:
    header = b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}'
    folder = tmp_path / "odd"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    job = run(tiny.generation(), checkpoint=Checkpoint(digest="d", uri=str(folder)))
    assert (job.outcome.status, job.outcome.metrics) == ("unreadable", [])


def test_being_told_to_stop_is_no_outcome(run: Run, tiny: Any) -> None:
    def stop(done: int, total: int) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        run(tiny.generation(), progress=stop)


class Longest:
    """A metric of a user, by shape; NaN as a float must be able to travel."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def update(self, outcome: ItemOutcome) -> None:
        self.lengths.append(outcome.tokens)

    def compute(self) -> Metric:
        return Metric(name="longest", value=float(max(self.lengths)), stderr=math.nan)

    def reset(self) -> None:
        self.lengths.clear()

    def merge(self, other: Longest) -> None:
        self.lengths += other.lengths


def test_a_metric_of_ones_own(run: Run, tiny: Any) -> None:
    items = [Text("a", "abc"), Text("b", "defgh", prefix="x")]
    job = run(tiny.scoring(items=items, metrics=lambda: (Longest(),)))
    assert job.outcome.metrics == [Metric(name="longest", value=5.0, stderr="NaN")]
