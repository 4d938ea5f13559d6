"""Every parameter is checked and documented."""

from __future__ import annotations

from pathlib import Path

import pytest

from driftline import detector_params
from driftline.config import DetectorSpec, PipelineConfig
from driftline.detector_params import PARAMS, check
from driftline.errors import SettingsError
from driftline.streams.detectors import Detectors

ALERTS = Path(__file__).resolve().parents[2] / "docs" / "alerts.md"


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"widow": 5}, "widow: 5 is not usable: loss_spike has no such parameter; it has calm_panes,"),
        ({"window": 20.5}, "window: 20.5 is not usable: give a whole number"),
        ({"window": 1}, "window: 1 is not usable: give 8 to 4096"),
        ({"score": float("nan")}, "score: nan is not usable: give a number"),
        ({"score": True}, "score: True is not usable: give a number"),
    ],
)
def test_a_parameter_that_cannot_be_used_is_refused_by_name(params, message):
    with pytest.raises(SettingsError) as caught:
        check("loss_spike", params, "alerting.detectors.0.params")
    assert str(caught.value).startswith(f"alerting.detectors.0.params.{message}")


def test_detectors_refuse_them_too():
    spec = DetectorSpec(name="mine", kind="slow_rank", params={"ration": 2})
    with pytest.raises(SettingsError, match=r"detectors\.mine\.params\.ration"):
        Detectors(PipelineConfig(detectors=[spec]))


def test_defaults_pass_their_own_check():
    for kind, params in PARAMS.items():
        check(kind, {name: param.default for name, param in params.items()})


@pytest.mark.parametrize("kind", PARAMS)
def test_the_documentation_holds_the_table_of_every_detector(kind):
    text = ALERTS.read_text(encoding="utf-8")
    assert detector_params.as_markdown(kind) in text, "paste detector_params.as_markdown(kind)"
