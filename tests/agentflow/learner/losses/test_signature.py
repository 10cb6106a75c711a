"""The losses as functions of padded rows agree with those of the learner's rows."""

# pyright: reportUnknownMemberType=false
# torch is typed in part.

from types import SimpleNamespace

import pytest
import torch

from agentflow.learner.losses import LossSettings, loss_of, policy_loss, rows_of
from tests.agentflow.learner.losses._cases import Table, episodes

MODES = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["flow_grpo", "gspo", "cispo"])
def test_padded_rows_and_rows_of_calls_give_one_loss(name: str, mode: str) -> None:
    settings = LossSettings.model_validate(
        {"name": name, "loss_agg_mode": mode, "kl_coef": 0.0, "clip_ratio_low": 0.1, "clip_ratio_high": 0.3}
    )
    samples = [sample for sample in episodes(2) if sample.multiplicity == 1]
    rows = rows_of(samples, settings)
    log_prob = Table(dtype=torch.float64).read(rows)[0].detach()
    mask, old, advantages = (torch.zeros_like(log_prob) for _ in range(3))
    for line, row in enumerate(rows):
        here = (line, slice(len(row.units)))
        mask[here] = 1
        old[here] = torch.from_numpy(row.behaviour).double()
        advantages[here] = torch.from_numpy(row.advantages).double()
    verl = SimpleNamespace(clip_ratio=0.3, clip_ratio_low=0.1, clip_ratio_high=None, global_batch_info={})
    expected = loss_of(log_prob, rows, settings)[0].item()
    for config in (settings, verl):
        found, figures = policy_loss(name)(old, log_prob, advantages, mask, mode, config)
        assert found.item() == pytest.approx(expected, rel=1e-6)
        assert 0 <= figures["actor/pg_clipfrac"] <= 1


def test_parts_of_a_batch_use_the_totals_of_the_batch() -> None:
    log_prob = torch.tensor([[-1.0, -2.0], [-3.0, 0.0]])
    mask = torch.tensor([[1, 1], [1, 0]])
    zero = torch.zeros_like(log_prob)
    fine_tune = policy_loss("cross_entropy")
    whole = SimpleNamespace(
        clip_ratio=0.2,
        clip_ratio_low=None,
        clip_ratio_high=None,
        global_batch_info={
            "dp_size": 2,
            "batch_num_tokens": 3,
            "global_batch_size": 2,
            "loss_scale_factor": 5,
        },
    )
    both = [fine_tune(zero[i : i + 1], log_prob[i : i + 1], zero[i : i + 1], mask[i : i + 1], "token-mean", whole)[0] for i in range(2)]  # fmt: skip
    assert sum(part.item() for part in both) / 2 == pytest.approx(2.0)
    scaled, _ = fine_tune(zero, log_prob, zero, mask, "seq-mean-token-sum-norm", whole)
    assert scaled.item() == pytest.approx(2 * 6 / 2 / 5)
    weighed, _ = fine_tune(zero, log_prob, zero, mask, "token-sum", None, torch.full_like(log_prob, 0.5))
    assert weighed.item() == pytest.approx(3.0)


def test_aggregations_that_need_episodes_are_refused() -> None:
    one = torch.zeros(1, 1)
    with pytest.raises(ValueError, match="loss_agg_mode turn-mean is not supported"):
        policy_loss("flow_grpo")(one, one, one, one, "turn-mean")
    with pytest.raises(ValueError, match="needs loss_scale_factor"):
        policy_loss("dr_grpo")(one, one, one, one, "seq-mean-token-sum-norm")
