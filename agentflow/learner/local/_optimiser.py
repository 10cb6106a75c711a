# pyright: reportUnknownMemberType=false
"""AdamW over weights in float32, whatever the model computes in."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from agentflow.learner._policy import OptimiserSettings

__all__ = ["Optimiser", "share_of_rate"]


class Optimiser:
    """The weights that are trained, by name, in float32, and their moves.

    Where the model computes in less, these are copies: gradients are summed into them in float32, and what they become
    is rounded into the model.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], settings: OptimiserSettings) -> None:
        self._settings = settings
        self._rounded: list[tuple[nn.Parameter, nn.Parameter]] = []
        self.weights = {name: self._exact(parameter) for name, parameter in parameters.items()}
        """What is trained, in float32."""
        decaying = [weight for weight in self.weights.values() if weight.dim() > 1]
        steady = [weight for weight in self.weights.values() if weight.dim() <= 1]
        self.adam = torch.optim.AdamW(
            [
                {"params": decaying, "weight_decay": settings.weight_decay},
                {"params": steady, "weight_decay": 0.0},
            ],
            lr=settings.rate,
            betas=settings.betas,
            eps=settings.epsilon,
        )

    def _exact(self, parameter: nn.Parameter) -> nn.Parameter:
        if parameter.dtype == torch.float32:
            return parameter
        exact = nn.Parameter(parameter.detach().float())

        def take(rounded: Tensor) -> None:
            assert rounded.grad is not None, "called when there is one"
            grad = rounded.grad.float()
            exact.grad = grad if exact.grad is None else exact.grad.add_(grad)
            rounded.grad = None

        parameter.register_post_accumulate_grad_hook(take)
        self._rounded.append((parameter, exact))
        return exact

    def length(self) -> float:
        """The length of the gradient over all weights of all ranks."""
        grads = [weight.grad for weight in self.weights.values() if weight.grad is not None]
        return float(_whole(torch.nn.utils.get_total_norm(grads)))

    def move(self, done: int, length: float) -> float:
        """One step along the gradient, which is that long; the rate it was made with.

        :param done: steps before it.
        """
        weights = list(self.weights.values())
        torch.nn.utils.clip_grads_with_norm_(weights, self._settings.clip, torch.tensor(length))
        rate = self._settings.rate * share_of_rate(self._settings, done)
        for group in self.adam.param_groups:
            group["lr"] = rate
        self.adam.step()
        self.forget()
        self.round()
        return rate

    def forget(self) -> None:
        """Forget the gradient."""
        self.adam.zero_grad(set_to_none=True)

    @torch.no_grad()
    def round(self) -> None:
        """Bring the weights into the model where it computes in less than float32."""
        for rounded, exact in self._rounded:
            rounded.copy_(exact)


def share_of_rate(settings: OptimiserSettings, done: int) -> float:
    """What part of the rate the step after `done` steps is made with."""
    if done < settings.warmup:
        return (done + 1) / settings.warmup
    if settings.schedule == "constant" or settings.steps is None:
        return 1.0
    gone = min(1.0, (done - settings.warmup) / max(1, settings.steps - settings.warmup))
    left = 1.0 - gone if settings.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * gone))
    return settings.floor + (1.0 - settings.floor) * left


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
