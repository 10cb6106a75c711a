"""Make one step with TRL's GRPOTrainer, whose environments are sandboxes: `grpo_step.py FOLDER COMMAND`.

The model samples freely, but its first turn is forced to a call of `bash_run` with the command. Prints one JSON object.
"""

import json
import sys

import torch
from datasets import load_dataset
from transformers import LogitsProcessor, LogitsProcessorList, Qwen3ForCausalLM
from transformers.utils import get_json_schema
from trl import GRPOConfig, GRPOTrainer
from trl_steps import arguments, make_model, make_tokenizer, step

from agentflow.exports import SandboxEnvironments

GENERATIONS = 2


class Forced(LogitsProcessor):
    """Forces the tokens after a prompt."""

    def __init__(self, start, ids):
        self.start, self.ids = start, ids

    def __call__(self, input_ids, scores):
        """Leave one token possible, as long as there are forced ones."""
        place = input_ids.shape[1] - self.start
        if place < len(self.ids):
            scores = torch.full_like(scores, -float("inf"))
            scores[:, self.ids[place]] = 0.0
        return scores


class CallingModel(Qwen3ForCausalLM):
    """Random model that makes a call first."""

    call_ids = ()
    text = ""
    tokenizer = None

    def generate(self, input_ids=None, **given):
        """Sample; a prompt without a result gets the call, the turn after it ends after at most eight tokens."""
        ids = self.call_ids
        if any(self.text in self.tokenizer.decode(row) for row in input_ids):
            ids = ()
            given["generation_config"].max_new_tokens = 8
        forced = LogitsProcessorList([Forced(input_ids.shape[1], ids)])
        return super().generate(input_ids=input_ids, logits_processor=forced, **given)


def main(folder, command):
    """Make the step and print its figures."""
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, CallingModel)
    call = json.dumps({"name": "bash_run", "arguments": {"command": command}})
    model.call_ids = [*tokenizer(f"<tool_call>\n{call}\n</tool_call>").input_ids, tokenizer.eos_token_id]
    model.tokenizer, model.text = tokenizer, "<tool_response>"
    rows = load_dataset(folder, split="train")
    seen = []

    def reward(completions, references, environments, **_):
        seen.extend(zip(completions, references, strict=True))
        return [float(number % 2) for number in range(len(completions))]

    args = GRPOConfig(
        **arguments(),
        num_generations=GENERATIONS,
        max_completion_length=512,
        max_tool_calling_iterations=2,
        beta=0.0,
    )
    with SandboxEnvironments(backends=["bash"], tools=["bash:run"]) as environments:
        trainer = GRPOTrainer(
            model,
            reward,
            args,
            train_dataset=rows,
            processing_class=tokenizer,
            environment_factory=environments,
        )
        masks = []
        original = trainer._generate_and_score_completions

        def watched(inputs):
            found = original(inputs)
            masks.extend(
                [int((kept.bool() & tool.bool()).sum()), int(kept.sum())]
                for kept, tool in zip(found["completion_mask"], found["tool_mask"], strict=True)
            )
            return found

        trainer._generate_and_score_completions = watched
        figures = step(trainer)
        schemas = [get_json_schema(tool)["function"] for tool in trainer.tools]
    metrics = trainer.state.log_history[0]
    print(
        json.dumps(
            {
                **figures,
                "completions": [messages for messages, _ in seen],
                "references": [list(own) for _, own in seen],
                "calls": metrics["tools/call_frequency"],
                "failures": metrics["tools/failure_frequency"],
                "masks": masks,
                "call_tokens": len(model.call_ids),
                "tools": schemas,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
