"""Programs of dataset cards with a tiny random model, which has the template of Qwen 3, and one step on the CPU."""

import re
import tempfile
from pathlib import Path

import torch
import trl
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentflow.testing._tiny_model import tiny_tokenizer

WORDS = 1024
NAME = "Qwen/Qwen3-0.6B"


def program_of(folder, model):
    """Return the program of an export's card, with that folder and that model."""
    card = (Path(folder) / "README.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```", card, re.DOTALL | re.MULTILINE)
    assert '"FOLDER"' in program
    assert f'"{NAME}"' in program
    return program.replace('"FOLDER"', repr(folder)).replace(f'"{NAME}"', repr(model))


def make_tokenizer(folder):
    """Return a small tokenizer that knows the words of an export, with the chat template of Qwen 3, which TRL knows."""
    tokenizer = tiny_tokenizer(WORDS, files=[Path(folder) / "train.jsonl"])
    template = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
    tokenizer.chat_template = template.read_text()
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


def one_step(**more):
    """Return the arguments of a trainer that makes one step over all rows on the CPU."""
    return {
        "output_dir": tempfile.mkdtemp(),
        "max_steps": 1,
        "learning_rate": 1e-2,
        "per_device_train_batch_size": 64,
        "report_to": [],
        "save_strategy": "no",
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
        "gradient_checkpointing": False,
        **more,
    }


def weights(trainer):
    """Return a copy of the weights that a trainer trains."""
    return {name: own.detach().clone() for name, own in trainer.model.named_parameters()}


def figures(trainer, before):
    """Return the number of steps, and of weights that changed."""
    after = weights(trainer)
    changed = sum(not torch.equal(own, after[name]) for name, own in before.items())
    return {"steps": trainer.state.global_step, "changed": changed}
