# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (transformers is partially typed)
"""Planners of an ablation: one that follows the path of a pair, and a small model in this process."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentflow.errors import ModelFailure, ModelFailureKind
from agentflow.models import Call, Completion, Message, TextPart
from agentflow.trajectory import NextStep, NextStepRequest, Usage, digest
from examples.first_training.teacher import SEARCH, TeacherStep
from examples.first_training.training import LONGEST

__all__ = ["LocalPlanner", "PathFollower"]

T = TypeVar("T")


class PathFollower:
    """Planner that makes the searches of a path, and remembers its prompts and answers."""

    name = "path"
    """Name of the planner."""
    vision = False
    """It accepts no images."""

    def __init__(self, queries: Mapping[str, Sequence[str]]) -> None:
        """:param queries: searches by question."""
        self._queries = queries
        self.shown: dict[str, list[TeacherStep]] = {question: [] for question in queries}
        """Steps by question."""

    async def complete(self, call: Call[T]) -> Completion[T]:
        """Return the next search of the path.

        :raises ModelFailure: at its end.
        """
        request = cast("NextStepRequest", call.request)
        taken = len(request.memory.turns)
        queries = self._queries[request.question]
        if taken == len(queries):
            raise ModelFailure(ModelFailureKind.GARBAGE, "the path has ended")
        step = NextStep("", f"query: {queries[taken]}", "", SEARCH)
        text = msgspec.json.encode(step).decode()
        self.shown[request.question].append(TeacherStep(request.question, _chat(call.messages), text))
        return Completion(value=cast("T", step), text=text, usage=Usage(1), model=self.name)


class LocalPlanner:
    """Small model that answers one call at a time in this process; equal weights and calls give equal answers."""

    name = "local"
    """Name of the planner."""
    vision = False
    """It accepts no images."""

    def __init__(self, folder: Path, *, temperature: float = 0.0, seed: int = 0) -> None:
        """Load weights.

        :param temperature: sampling temperature; 0 takes the likeliest token.
        """
        self._tokenizer: Any = AutoTokenizer.from_pretrained(str(folder))
        self._model: Any = AutoModelForCausalLM.from_pretrained(str(folder)).eval()
        self._temperature = temperature
        self._seed = seed

    async def complete(self, call: Call[T]) -> Completion[T]:
        """Return the next step.

        :raises ModelFailure: if the model writes something else.
        """
        prompt = self._tokenizer.apply_chat_template(
            _chat(call.messages), tokenize=False, add_generation_prompt=True
        )
        text = self._text(prompt)
        try:
            step = msgspec.json.decode(text, type=NextStep)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise ModelFailure(ModelFailureKind.GARBAGE, "the answer is no next step") from None
        return Completion(value=cast("T", step), text=text, usage=Usage(1), model=self.name)

    @torch.inference_mode()
    def _text(self, prompt: str) -> str:
        chance = torch.Generator().manual_seed(int(digest([self._seed, prompt]), 16) % 2**31)
        ids: torch.Tensor = self._tokenizer(prompt, add_special_tokens=False, return_tensors="pt")[
            "input_ids"
        ]
        written: list[int] = []
        past: object = None
        for _ in range(LONGEST):
            out = self._model(input_ids=ids, past_key_values=past, use_cache=True)
            past, logits = out.past_key_values, out.logits[0, -1]
            if self._temperature:
                chances = torch.softmax(logits / self._temperature, dim=-1)
                token = int(torch.multinomial(chances, 1, generator=chance))
            else:
                token = int(logits.argmax())
            if token == self._tokenizer.eos_token_id:
                break
            written.append(token)
            ids = torch.tensor([[token]])
        return self._tokenizer.decode(written)


def _chat(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Return messages for a chat template, each part on its own lines, as engines render them."""
    return [
        {
            "role": each.role,
            "content": "\n".join(part.text for part in each.parts if isinstance(part, TextPart)),
        }
        for each in messages
    ]
