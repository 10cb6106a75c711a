"""Load all splits of exported folders as verl does: `verl_rows.py MODEL TEMPLATE rl=FOLDER sft=FOLDER`.

TEMPLATE is the file of a chat template; empty: that of the model. Prints one JSON object: the items of `RLHFDataset`, and the
trained parts of those of `MultiTurnSFTDataset`.
"""

import json
import sys
import tempfile
from pathlib import Path

from omegaconf import OmegaConf
from transformers import AutoTokenizer
from verl.utils.dataset import RLHFDataset
from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset
from verl.utils.dataset.rl_dataset import collate_fn

LONG = 1_000_000


def files_of(folder):
    """Return the files of all splits."""
    return sorted(str(file) for file in Path(folder).glob("*.parquet"))


def rl(folder, tokenizer):
    """Return the items, as a batch of the trainer has them."""
    settings = OmegaConf.create({"cache_dir": tempfile.mkdtemp(), "max_prompt_length": LONG})
    rows = RLHFDataset(files_of(folder), tokenizer, settings)
    batch = collate_fn([rows[place] for place in range(len(rows))])
    names = ("data_source", "raw_prompt", "index", "reward_model", "tools_kwargs", "extra_info")
    return [{name: batch[name][place] for name in names} for place in range(len(rows))]


def sft(folder, tokenizer):
    """Return the whole text and the trained parts of each item."""
    settings = OmegaConf.create({"max_length": LONG, "pad_mode": "no_padding"})
    rows = MultiTurnSFTDataset(files_of(folder), tokenizer, settings)
    found = []
    for place in range(len(rows)):
        item = rows[place]
        ids, mask = item["input_ids"].tolist(), item["loss_mask"].tolist()
        parts = []
        for before, trained, own in zip([0, *mask[:-1]], mask, ids, strict=True):
            if trained and not before:
                parts.append([])
            if trained:
                parts[-1].append(own)
        found.append({"text": tokenizer.decode(ids), "trained": [tokenizer.decode(part) for part in parts]})
    return found


KINDS = {"rl": rl, "sft": sft}


def main(model, template, *given):
    """Load the folders and print what came of them."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    if template:
        tokenizer.chat_template = Path(template).read_text()
    found = {kind: KINDS[kind](folder, tokenizer) for kind, folder in (one.split("=", 1) for one in given)}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
