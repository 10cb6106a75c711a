"""A linear layer of 16-bit numbers in 32 bits, checked on the device that there is."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch is typed in part.

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from agentflow.learner.compute._attention import linear_of_16_bits


def numbers(*size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(
        *size, dtype=dtype, generator=torch.Generator().manual_seed(sum(size))
    ).requires_grad_()


@pytest.mark.parametrize("biased", [True, False])
def test_its_gradients_are_those_of_a_linear_layer(biased: bool) -> None:
    given: Any = (numbers(5, 8), numbers(7, 8), numbers(7) if biased else None)
    assert torch.autograd.gradcheck(linear_of_16_bits, given)
    assert torch.equal(linear_of_16_bits(*given), nn.functional.linear(*given))


def test_other_products_keep_their_precision() -> None:
    settings: Any = torch.backends.cuda.matmul
    before = settings.fp32_precision
    linear_of_16_bits(numbers(3, 4), numbers(2, 4), None).sum().backward()
    assert settings.fp32_precision == before
    with pytest.raises(RuntimeError):
        linear_of_16_bits(numbers(3, 4), numbers(2, 5), None)
    assert settings.fp32_precision == before


def test_frozen_weights_have_no_gradient() -> None:
    inputs, weight = numbers(3, 4), numbers(2, 4).detach()
    linear_of_16_bits(inputs, weight, None).sum().backward()
    assert inputs.grad is not None
    assert weight.grad is None
