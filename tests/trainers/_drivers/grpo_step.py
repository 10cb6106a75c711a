"""Run the program of the card of a `trl-grpo` export, for one step: `grpo_step.py FOLDER COMMAND`.

The model samples freely, but its first turn is forced to a call of `bash_run` with the command. Prints one JSON object.
"""

import json
import sys
import tempfile

import torch
import trl
from tiny_qwen import figures, make_model, make_tokenizer, one_step, program_of, weights
from transformers import LogitsProcessor, LogitsProcessorList, Qwen3ForCausalLM
from transformers.utils import get_json_schema

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
    """Run the program of the card and print the figures of its step."""
    tokenizer, name = make_tokenizer(folder), tempfile.mkdtemp()
    tokenizer.save_pretrained(name)
    call = json.dumps({"name": "bash_run", "arguments": {"command": command}})
    CallingModel.call_ids = [
        *tokenizer(f"<tool_call>\n{call}\n</tool_call>").input_ids,
        tokenizer.eos_token_id,
    ]
    CallingModel.tokenizer, CallingModel.text = tokenizer, "<tool_response>"
    program, (runs, trainer) = program_of(folder, name), watch(tokenizer)
    trl.GRPOTrainer = trainer
    exec(compile(program, "README.md", "exec"), {})
    (found,) = runs
    print(json.dumps({**found, "call_tokens": len(CallingModel.call_ids)}))


def watch(tokenizer):
    """Return a list, and a trainer whose step appends its figures to it."""
    runs = []

    class Watched(trl.GRPOTrainer):
        def __init__(self, model, reward, **given):
            self.seen, self.masks = [], []

            def spread(completions, references, **more):
                # A random model is never right, and equal rewards train nothing.
                self.seen.extend(zip(completions, references, strict=True))
                found = reward(completions=completions, references=references, **more)
                return [own + number % 2 for number, own in enumerate(found)]

            args = trl.GRPOConfig(
                **one_step(per_device_train_batch_size=2),
                num_generations=GENERATIONS,
                max_completion_length=512,
                max_tool_calling_iterations=2,
                beta=0.0,
            )
            more = {"args": args, "processing_class": tokenizer, **given}
            super().__init__(make_model(tokenizer, CallingModel), spread, **more)

        def _generate_and_score_completions(self, inputs):
            found = super()._generate_and_score_completions(inputs)
            self.masks += [
                [int((kept.bool() & tool.bool()).sum()), int(kept.sum())]
                for kept, tool in zip(found["completion_mask"], found["tool_mask"], strict=True)
            ]
            return found

        def train(self):
            before = weights(self)
            super().train()
            metrics = self.state.log_history[0]
            found = {
                "completions": [messages for messages, _ in self.seen],
                "references": [list(own) for _, own in self.seen],
                "calls": metrics["tools/call_frequency"],
                "failures": metrics["tools/failure_frequency"],
                "masks": self.masks,
                "tools": [get_json_schema(tool)["function"] for tool in self.tools],
            }
            runs.append({**figures(self, before), **found})

    return runs, Watched


if __name__ == "__main__":
    main(*sys.argv[1:])
