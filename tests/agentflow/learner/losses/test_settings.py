"""Settings of a loss: its own defaults, and overrides."""

import pytest
from pydantic import ValidationError

from agentflow.learner.losses import LossSettings, loss_names


def test_the_default_is_flow_grpo_as_published() -> None:
    settings = LossSettings()
    assert (settings.name, settings.clip_ratio_low, settings.clip_ratio_high, settings.kl_coef) == (
        "flow_grpo",
        0.2,
        0.2,
        0.001,
    )
    assert (settings.loss_agg_mode, settings.divide_by_std, settings.filter_groups) == (
        "turn-mean",
        True,
        False,
    )


def test_each_loss_has_its_own_defaults() -> None:
    dapo = LossSettings(name="dapo")
    assert (
        dapo.clip_ratio_low,
        dapo.clip_ratio_high,
        dapo.kl_coef,
        dapo.loss_agg_mode,
        dapo.filter_groups,
    ) == (
        0.2,
        0.28,
        0.0,
        "token-mean",
        True,
    )
    assert not LossSettings(name="dr_grpo", length_scale=1).divide_by_std
    assert LossSettings(name="gspo").clip_ratio_high == 4e-4


def test_settings_override_the_defaults_of_a_loss() -> None:
    settings = LossSettings(name="dapo", clip_ratio_high=0.4, kl_coef=0.1)
    assert (settings.clip_ratio_low, settings.clip_ratio_high, settings.kl_coef) == (0.2, 0.4, 0.1)
    assert LossSettings.model_validate(settings.model_dump()) == settings
    assert LossSettings.model_validate(settings) is settings


def test_a_correction_has_its_own_level_and_limit() -> None:
    cut, masked = LossSettings(), LossSettings(correction="mask")
    assert (cut.correction, cut.correction_level, cut.correction_limit) == ("truncate", "token", 2.0)
    assert (masked.correction_level, masked.correction_limit) == ("sequence", 3.0)
    assert LossSettings(correction="mask", correction_limit=5).correction_limit == 5


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "dr_grpo"}, "dr_grpo needs length_scale"),
        ({"name": "ppo"}, "there is no loss 'ppo'; known are cispo, cross_entropy, dapo"),
        ({"overlong_limit": 3, "overlong_buffer": 4}, "overlong_buffer is larger than overlong_limit"),
        (
            {"credit": "treerl", "baseline": "none"},
            "credit: treerl needs a baseline; set baseline to group or leave_one_out",
        ),
        ({"credit": "parent"}, "Input should be 'episode', 'siblings', 'treerl' or 'tree_grpo'"),
        ({"clip_hihg": 0.3}, "Extra inputs are not permitted"),
    ],
)
def test_invalid_settings_are_refused_in_one_line(given: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError) as problem:
        LossSettings.model_validate(given)
    (error,) = problem.value.errors()
    assert said in error["msg"]
    assert "\n" not in error["msg"]


def test_every_built_in_loss_can_be_named() -> None:
    built_in = {"flow_grpo", "grpo", "dapo", "dr_grpo", "gspo", "cispo", "reinforce", "cross_entropy"}
    assert built_in <= set(loss_names())
    for name in built_in:
        assert LossSettings(name=name, length_scale=8).name == name
