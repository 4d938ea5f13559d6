"""trainer_state.json and results of lm-evaluation-harness."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from driftline.errors import BadData

STATE = {
    "best_metric": 0.71,
    "best_model_checkpoint": "out/checkpoint-20",
    "epoch": 2.0,
    "eval_steps": 10,
    "global_step": 20,
    "is_hyper_param_search": False,
    "is_local_process_zero": True,
    "is_world_process_zero": True,
    "log_history": [
        {"epoch": 0.5, "grad_norm": 1.5, "learning_rate": 5e-05, "loss": 2.25, "step": 5},
        {"epoch": 1.0, "grad_norm": math.nan, "learning_rate": 4e-05, "loss": 1.5, "step": 10},
        {"epoch": 1.0, "eval_accuracy": 0.5, "eval_loss": 1.25, "eval_runtime": 3.5, "step": 10},
        {"epoch": 2.0, "step": 20, "total_flos": 1.5e15, "train_loss": 1.9, "note": "text"},
    ],
    "logging_steps": 5,
    "max_steps": 20,
    "num_train_epochs": 2,
    "train_batch_size": 8,
    "trial_name": None,
}


def saved(folder: Path, step: int, history: list[Any]) -> None:
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "trainer_state.json").write_text(json.dumps(STATE | {"log_history": history}, indent=2))


def test_all_that_a_trainer_logged_is_there_and_a_later_checkpoint_adds_what_is_new(
    tmp_path: Path, place: Any
) -> None:
    history: list[Any] = STATE["log_history"]  # type: ignore[assignment]
    saved(tmp_path / "sft run", 9, history[:1])
    assert place.imported(tmp_path / "sft run").samples == 4
    saved(tmp_path / "sft run", 20, history)
    made = place.imported(tmp_path / "sft run")
    assert made.rows["samples"] == 4 + 4 + 3
    assert made.tally.refused == {"text": 1}
    assert place.rows("SELECT name FROM runs") == [("sft run",)]
    assert place.rows(
        "SELECT step, value FROM curves WHERE metric IN ('loss', 'eval_loss') ORDER BY ALL"
    ) == [
        (5, 2.25),
        (10, 1.25),
        (10, 1.5),
    ]
    assert place.rows("SELECT step FROM samples WHERE isnan(value)") == [(10,)]
    assert place.rows("SELECT step, value FROM samples WHERE metric = 'epoch' ORDER BY ALL") == [
        (5, 0.5),
        (10, 1.0),
        (10, 1.0),
        (20, 2.0),
    ]


def test_a_document_that_is_being_written_is_refused_whole(tmp_path: Path, place: Any) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps(STATE)[:-40])
    with pytest.raises(BadData, match="not whole JSON"):
        place.imported(tmp_path)


def results(step: int, accuracy: float) -> dict[str, Any]:
    return {
        "results": {
            "gsm8k": {
                "alias": "gsm8k",
                "exact_match,strict-match": accuracy,
                "exact_match_stderr,strict-match": 0.0137,
                "exact_match,flexible-extract": accuracy + 0.01,
                "exact_match_stderr,flexible-extract": "N/A",
            },
            "arc": {"alias": "arc", "acc,none": 0.25, "acc_stderr,none": 0.01},
        },
        "n-samples": {"gsm8k": {"original": 1319, "effective": 1319}, "arc": {"original": 9, "effective": 4}},
        "versions": {"gsm8k": 3.0, "arc": 1.0},
        "n-shot": {"gsm8k": 5, "arc": 0},
        "config": {
            "model": "hf",
            "model_args": f"pretrained=/ckpt/qwen-ppo/global_step_{step},dtype=bfloat16",
        },
        "date": 1_700_000_000.5 + step,
        "model_name": "x",
    }


def test_results_become_evaluations_with_errors_counts_steps_and_items(tmp_path: Path, place: Any) -> None:
    folder = tmp_path / "lm eval"
    for step, accuracy in ((100, 0.3), (20, 0.2)):
        inside = folder / f"s{step}"
        inside.mkdir(parents=True)
        (inside / "results_2023-11-14T22-13-20.5.json").write_text(
            json.dumps(results(step, accuracy), indent=1)
        )
    samples = [
        {"doc_id": 0, "target": "18", "filtered_resps": ["18"], "filter": "strict-match", "exact_match": 1.0},
        {
            "doc_id": 1,
            "target": "3",
            "filtered_resps": ["[invalid]"],
            "filter": "strict-match",
            "exact_match": 0.0,
        },
        {"doc_id": 2, "target": "70", "filtered_resps": [["-3.5", "False"]], "perplexity": 7.5},
    ]
    text = "\n".join(map(json.dumps, samples)) + "\n{broken\n"
    (folder / "s20" / "samples_gsm8k_2023-11-14T22-13-20.5.jsonl").write_text(text)
    made = place.imported(folder)
    assert made.evaluations == 4
    assert made.tally.refused == {"line": 1}
    rows = place.rows(
        "SELECT name, suite, suite_version, metric, step, value, stderr, count, items, epoch_ms(accepted) "
        "FROM evals JOIN runs USING (run) WHERE step = 20 ORDER BY suite, metric"
    )
    at = 1_700_000_020_500
    assert rows == [
        ("/ckpt/qwen-ppo", "arc", "1.0", "acc", 20, 0.25, 0.01, 4, 0, at),
        ("/ckpt/qwen-ppo", "gsm8k", "3.0", "exact_match,flexible-extract", 20, 0.2 + 0.01, None, 1319, 3, at),
        ("/ckpt/qwen-ppo", "gsm8k", "3.0", "exact_match,strict-match", 20, 0.2, 0.0137, 1319, 3, at),
    ]
    items = place.rows(
        "SELECT item, i.status, score, response, expected FROM eval_items i JOIN (SELECT DISTINCT lease "
        "FROM evals) "
        "USING (lease) ORDER BY position"
    )
    assert items == [
        ("0,strict-match", "correct", 1.0, "18", "18"),
        ("1,strict-match", "wrong", 0.0, "[invalid]", "3"),
        ("2", "scored", None, '["-3.5", "False"]', "70"),
    ]
    assert place.imported(folder).rows.total() == 0


def test_results_that_are_gone_are_named(tmp_path: Path, place: Any) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    for step in (1, 2):
        (folder / f"results_{step}.json").write_text(json.dumps(results(step, 0.5)))
    place.imported(folder)
    (folder / "results_1.json").unlink()
    with pytest.raises(BadData, match=r"results_1\.json is gone"):
        place.imported(folder)


def test_results_can_be_added_to_a_run_that_is_there_and_get_a_step(tmp_path: Path, place: Any) -> None:
    train = tmp_path / "train.csv"
    train.write_text("step,loss\n1,2\n2,1\n")
    place.imported(train, run="exp-1", name="exp one")
    path = tmp_path / "results.json"
    path.write_text(json.dumps(results(7, 0.5)))
    made = place.imported(path, run="exp-1", name="exp one", step=2)
    assert made.runs == {"exp-1": "exp one"}
    assert place.rows("SELECT DISTINCT run, step FROM evals") == [("exp-1", 2)]
    assert place.rows("SELECT count(*), any_value(name) FROM runs") == [(1, "exp one")]


def test_real_results_of_the_harness_come_whole(place: Any, realdata: Path) -> None:
    path = realdata / "ckpt_evals" / "lm_eval_raw_pythia160m_step143000.json"
    document = json.loads(path.read_text())
    made = place.imported(path)
    wanted = {
        (task, name, value, found.get(f"{name}_stderr"))
        for task, found in document["results"].items()
        for name, value in found.items()
        if not name.endswith("_stderr")
    }
    assert made.evaluations == len(document["results"])
    assert set(place.rows("SELECT suite, metric, value, stderr FROM evals")) == wanted
    assert place.rows("SELECT DISTINCT step FROM evals") == [(143_000,)]


def test_a_training_that_reached_its_last_step_is_finished_and_another_may_go_on(
    tmp_path: Path, place: Any
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    nested = [{"step": 1, "eval": {"acc": 0.5, "more": {"f1": 0.25}}}]
    (folder / "trainer_state.json").write_text(json.dumps(STATE | {"log_history": nested}))
    place.imported(folder, settled=False)
    assert place.rows("SELECT metric, value FROM samples ORDER BY ALL") == [
        ("eval/acc", 0.5),
        ("eval/more/f1", 0.25),
    ]
    assert place.rows("SELECT outcome FROM runs") == [("finished",)]
    other = tmp_path / "other"
    other.mkdir()
    (other / "trainer_state.json").write_text(json.dumps(STATE | {"global_step": 19}))
    assert any("stays open" in note for note in place.imported(other, settled=False).tally.notes)


@pytest.mark.parametrize("task", ["a/b", "../../etc/x", "x" * 300, "nul\0", "half \ud83d", ""], ids=range(6))
def test_results_with_odd_names_come_or_are_counted_and_read_no_other_file(
    tmp_path: Path, place: Any, task: str
) -> None:
    document = {"results": {task: {"acc,none": 0.5, "half \ud83d": 1}}, "versions": {task: 1}}
    document["config"] = {"model_args": "pretrained=a\ud83d/b"}
    (tmp_path / "results.json").write_text(json.dumps(document))
    made = place.imported(tmp_path / "results.json")
    assert made.evaluations == 1
    assert place.rows("SELECT count(*), sum(items) FROM evals") == [(2, 0)]


@pytest.mark.parametrize("text", ["[]", '{"results": []}', '{"results": {"a": 1}, "versions": {}}', "7"])
def test_a_document_that_is_said_to_be_results_and_is_none_is_refused(
    tmp_path: Path, place: Any, text: str
) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(BadData):
        place.imported(tmp_path / "r.json", format="lm_eval")
