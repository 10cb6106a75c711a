"""Make one step with each trainer of TRL: `trl_steps.py sft=FOLDER tokens=FOLDER dpo=FOLDER kto=FOLDER`.

Prints one JSON object: figures of each step by name.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
import trl
from datasets import load_dataset
from transformers import Qwen3Config, Qwen3ForCausalLM
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, SFTConfig, SFTTrainer
from trl.chat_template_utils import get_training_chat_template

from agentflow.testing._tiny_model import tiny_tokenizer

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
WORDS = 512
WHOLE = {"max_length": None}
"""TRL cuts rows at 1,024 tokens, unless it is told not to."""


def make_tokenizer(words=WORDS):
    """Return a small tokenizer with the chat template of Qwen 3, which TRL knows."""
    tokenizer = tiny_tokenizer(words, texts=["tools are called in JSON"])
    tokenizer.chat_template = (TEMPLATES / "qwen3.jinja").read_text()
    return tokenizer


def make_model(tokenizer, kind=Qwen3ForCausalLM):
    """Return a random model of one layer."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=max(len(tokenizer), WORDS),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=32768,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return kind(config)


def arguments(**more):
    """Return the arguments of a trainer that makes one step on the CPU."""
    return {
        "output_dir": tempfile.mkdtemp(),
        "max_steps": 1,
        "learning_rate": 1e-2,
        "per_device_train_batch_size": 2,
        "report_to": [],
        "save_strategy": "no",
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
        "gradient_checkpointing": False,
        **more,
    }


def step(trainer):
    """Make the step; return its loss and the number of parameters that changed."""
    before = {name: value.detach().clone() for name, value in trainer.model.named_parameters()}
    loss = trainer.train().training_loss
    changed = sum(not torch.equal(before[name], value) for name, value in trainer.model.named_parameters())
    return {
        "rows": len(trainer.train_dataset),
        "steps": trainer.state.global_step,
        "loss": loss,
        "changed": changed,
    }


def labelled(row):
    """Return the label ids of each trained part of a row."""
    parts, last = [], -2
    for place, label in enumerate(row["labels"]):
        if label == -100:
            continue
        if place != last + 1:
            parts.append([])
        parts[-1].append(label)
        last = place
    return parts


def sft(folder):
    """Train on messages; also return the text of each trained part, and the tokens that the model would have sampled."""
    tokenizer = make_tokenizer()
    rows = load_dataset(folder, split="train")
    args = SFTConfig(**arguments(), **WHOLE, assistant_only_loss=True, shuffle_dataset=False)
    trainer = SFTTrainer(make_model(tokenizer), args, train_dataset=rows, processing_class=tokenizer)
    template = get_training_chat_template(tokenizer)
    expected, calls = 0, []
    for row in rows:
        messages = row["prompt"] + row["completion"]
        tools = row.get("tools")
        given = {"tools": json.loads(tools) if isinstance(tools, str) else tools, "chat_template": template}
        for place in range(len(row["prompt"]), len(messages)):
            if messages[place]["role"] != "assistant":
                continue
            read = tokenizer.apply_chat_template(
                messages[:place], add_generation_prompt=True, return_dict=False, **given
            )
            whole = tokenizer.apply_chat_template(messages[: place + 1], return_dict=False, **given)
            assert whole[: len(read)] == read
            expected += len(whole) - len(read)
            calls += [one["function"]["arguments"] for one in messages[place].get("tool_calls") or []]
    texts = [[tokenizer.decode(part) for part in labelled(row)] for row in trainer.train_dataset]
    prompt = tokenizer.decode(trainer.train_dataset[0]["input_ids"])
    labels = sum(sum(label != -100 for label in row["labels"]) for row in trainer.train_dataset)
    schemas = [row.get("tools") for row in rows]
    figures = {
        "labels": labels,
        "sampled": expected,
        "texts": texts,
        "first": prompt,
        "tools": schemas,
        "calls": calls,
    }
    return {**figures, **step(trainer)}


def tokens(folder):
    """Train on exact tokens; also return the labels of each row, as the trainer has them."""
    tokenizer = make_tokenizer()
    rows = load_dataset(folder, split="train")
    args = SFTConfig(**arguments(), **WHOLE, shuffle_dataset=False)
    trainer = SFTTrainer(make_model(tokenizer), args, train_dataset=rows, processing_class=tokenizer)
    batch = trainer.data_collator([trainer.train_dataset[place] for place in range(len(rows))])
    labels = [[label for label in row if label != -100] for row in batch["labels"].tolist()]
    return {"labels": labels, **step(trainer)}


def dpo(folder):
    """Train on preferences."""
    tokenizer = make_tokenizer()
    rows = load_dataset(folder, split="train")
    model = make_model(tokenizer)
    trainer = DPOTrainer(
        model, None, DPOConfig(**arguments(), **WHOLE), train_dataset=rows, processing_class=tokenizer
    )
    pairs = [
        [tokenizer.decode(row[name]) for name in ("prompt_ids", "chosen_ids", "rejected_ids")]
        for row in trainer.train_dataset
    ]
    return {"pairs": pairs, **step(trainer)}


def kto(folder):
    """Train on single answers."""
    tokenizer = make_tokenizer()
    rows = load_dataset(folder, split="train")
    model = make_model(tokenizer)
    trainer = KTOTrainer(
        model, None, KTOConfig(**arguments(), **WHOLE), train_dataset=rows, processing_class=tokenizer
    )
    labels = [bool(row["label"]) for row in rows]
    texts = [tokenizer.decode(row["completion_ids"]) for row in trainer.train_dataset]
    return {"labels": labels, "texts": texts, **step(trainer)}


STEPS = {"sft": sft, "tokens": tokens, "dpo": dpo, "kto": kto}

if __name__ == "__main__":
    print(
        json.dumps(
            {name: STEPS[name](folder) for name, folder in (given.split("=", 1) for given in sys.argv[1:])}
        )
    )
