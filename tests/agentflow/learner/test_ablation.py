"""The ablation of checked and unchecked pairs, in its short form; in full by hand or with `make soak`."""

import json

import pytest

from benchmarks import ablation


@pytest.mark.promise("first:ablation")
def test_both_arms_train_on_equal_numbers_of_steps_and_the_checks_keep_the_good_drafts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ablation.main(["--short", "--check"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (figures["gate_precision"], figures["gate_recall"]) == (1.0, 1.0)
    assert figures["steps"] == 16
    assert abs(figures["more_characters_gated"]) < 0.02
    assert {f"{arm}_{way}_chain" for arm in ablation.ARMS for way in ablation.TEMPERATURES} <= figures.keys()


@pytest.mark.soak
@pytest.mark.promise("first:ablation")
def test_a_model_learns_chains_from_checked_drafts() -> None:
    assert ablation.main(["--check", "--seeds", "1"]) == 0
