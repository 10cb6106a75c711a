"""Load an exported folder as axolotl does: `axolotl_rows.py FOLDER MODEL TEMPLATE`.

The settings are the folder's `axolotl.yaml` with a model and the name of a template. Prints one JSON object: the whole
text of each row, and its trained parts.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ["AXOLOTL_DO_NOT_TRACK"] = "1"

import yaml
from axolotl.cli.config import load_cfg
from axolotl.loaders import load_tokenizer
from axolotl.utils.data import prepare_datasets

IGNORED = -100


def trained_parts(row, tokenizer):
    """Return the text of each trained part of a row."""
    parts, last = [], -2
    for place, label in enumerate(row["labels"]):
        if label == IGNORED:
            continue
        assert label == row["input_ids"][place]
        if place != last + 1:
            parts.append([])
        parts[-1].append(label)
        last = place
    return [tokenizer.decode(part) for part in parts]


def main(folder, model, template):
    """Load the folder and print what came of it."""
    scratch = Path(tempfile.mkdtemp())
    # Paths of the settings are those in the folder.
    os.chdir(folder)
    settings = {
        **yaml.safe_load(Path("axolotl.yaml").read_text()),
        "base_model": model,
        "chat_template": template,
        "sequence_len": 1_000_000,
        "micro_batch_size": 1,
        "gradient_accumulation_steps": 1,
        "num_epochs": 1,
        "learning_rate": 1e-4,
        "val_set_size": 0,
        "dataset_num_proc": 1,
        "dataset_prepared_path": str(scratch / "prepared"),
        "output_dir": str(scratch / "out"),
    }
    file = scratch / "settings.yaml"
    file.write_text(yaml.safe_dump(settings))
    cfg = load_cfg(str(file))
    tokenizer = load_tokenizer(cfg)
    train, validation, _, _ = prepare_datasets(cfg, tokenizer)
    found = {
        split: [
            {"text": tokenizer.decode(row["input_ids"]), "trained": trained_parts(row, tokenizer)}
            for row in rows
        ]
        for split, rows in (("train", train), ("validation", validation))
        if rows is not None
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
