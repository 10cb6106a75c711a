"""Logits processor of vLLM that makes any model say the lines of a script, one in each turn.

A conversation names its script by `[[script NAME]]`. `SCRIPTS` is a JSON file with the lines of each script; the number of
answers in the prompt is the number of the line.
"""

import json
import os
import re

import torch
from transformers import AutoTokenizer
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

ANSWER = "<|im_start|>assistant"


class ScriptedModel(AdapterLogitsProcessor):
    """Allows only the next token of the script."""

    def __init__(self, config, device, is_pin_memory):
        super().__init__(config, device, is_pin_memory)
        self.tokenizer = AutoTokenizer.from_pretrained(config.model_config.tokenizer)
        self.lines = {}

    def is_argmax_invariant(self):
        return False

    def new_req_logits_processor(self, params):
        wanted = []

        def allow_next(prompt, sampled, logits):
            if not wanted:
                wanted.extend(self.line_for(self.tokenizer.decode(prompt)))
            if wanted[0] >= 0:
                # Ids after the end can be asked for while a batch is finished.
                keep = wanted[min(len(sampled), len(wanted) - 1)]
                logits = torch.full_like(logits, float("-inf"))
                logits[keep] = 0.0
            return logits

        return allow_next

    def line_for(self, prompt):
        """Return the tokens of the line; `[-1]` without a script."""
        names = re.findall(r"\[\[script ([\w-]+)\]\]", prompt)
        if not names:
            return [-1]
        with open(os.environ["SCRIPTS"], encoding="utf-8") as file:
            lines = json.load(file)[names[0]]
        line = lines[min(prompt.count(ANSWER) - 1, len(lines) - 1)]
        return [*self.tokenizer.encode(line, add_special_tokens=False), self.tokenizer.eos_token_id]
