# pyright: reportUnknownMemberType=false
"""AdamW with float32 master weights and a learning rate schedule, independent of the precision of the model."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from agentflow.learner._policy import OptimizerSettings


class Optimizer:
    """The trained weights by name, in float32, and their updates.

    If the model computes in a lower precision, these are copies: gradients are accumulated into them in float32, and
    updated weights are rounded into the model.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], settings: OptimizerSettings) -> None:
        self._settings = settings
        self._rounded: list[tuple[nn.Parameter, nn.Parameter]] = []
        self.weights = {name: self._exact(parameter) for name, parameter in parameters.items()}
        """Trained weights, in float32."""
        decaying = [weight for weight in self.weights.values() if weight.dim() > 1]
        steady = [weight for weight in self.weights.values() if weight.dim() <= 1]
        self.adam = torch.optim.AdamW(
            [
                {"params": decaying, "weight_decay": settings.weight_decay},
                {"params": steady, "weight_decay": 0.0},
            ],
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=settings.adam_epsilon,
        )

    def _exact(self, parameter: nn.Parameter) -> nn.Parameter:
        if parameter.dtype == torch.float32:
            return parameter
        exact = nn.Parameter(parameter.detach().float())

        def accumulate(rounded: Tensor) -> None:
            assert rounded.grad is not None, "the hook runs after accumulation"
            grad = rounded.grad.float()
            exact.grad = grad if exact.grad is None else exact.grad.add_(grad)
            rounded.grad = None

        parameter.register_post_accumulate_grad_hook(accumulate)
        self._rounded.append((parameter, exact))
        return exact

    def grad_norm(self) -> float:
        """Return the norm of the gradient over all weights of all ranks."""
        grads = [weight.grad for weight in self.weights.values() if weight.grad is not None]
        return float(_whole(torch.nn.utils.get_total_norm(grads)))

    def update(self, done: int, norm: float) -> float:
        """Make one step and return its learning rate.

        :param done: steps before it.
        :param norm: norm of the gradient.
        """
        weights = list(self.weights.values())
        torch.nn.utils.clip_grads_with_norm_(weights, self._settings.max_grad_norm, torch.tensor(norm))
        rate = self._settings.learning_rate * lr_ratio(self._settings, done)
        for group in self.adam.param_groups:
            group["lr"] = rate
        self.adam.step()
        self.zero_grad()
        self.round()
        return rate

    def zero_grad(self) -> None:
        """Discard the gradient."""
        self.adam.zero_grad(set_to_none=True)

    @torch.no_grad()
    def round(self) -> None:
        """Round the weights into the model, if it computes in a lower precision."""
        for rounded, exact in self._rounded:
            rounded.copy_(exact)


def lr_ratio(settings: OptimizerSettings, done: int) -> float:
    """Return the learning rate of the step after `done` steps, as a fraction of the peak."""
    if done < settings.warmup_steps:
        return (done + 1) / settings.warmup_steps
    if settings.lr_scheduler_type == "constant" or settings.decay_steps is None:
        return 1.0
    progress = min(1.0, (done - settings.warmup_steps) / max(1, settings.decay_steps - settings.warmup_steps))
    linear = settings.lr_scheduler_type == "linear"
    left = 1.0 - progress if linear else 0.5 * (1.0 + math.cos(math.pi * progress))
    return settings.min_lr_ratio + (1.0 - settings.min_lr_ratio) * left


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
