"""Run the program of a dataset card with TRL, and record what it trains: `card_program.py FOLDER`.

Prints one JSON object: figures of the step; of each row the labels, and its text as pairs of context and trained part; and the
texts of the conversations in the files, rendered by the template.
"""

import importlib
import json
import math
import re
import sys
import tempfile
from itertools import groupby
from pathlib import Path

from tiny_qwen import figures, make_model, make_tokenizer, one_step, program_of, weights
from trl.chat_template_utils import get_training_chat_template

IGNORED = -100


def main(folder):
    """Run the program and print its figures."""
    tokenizer, model = make_tokenizer(folder), tempfile.mkdtemp()
    make_model(tokenizer).save_pretrained(model)
    tokenizer.save_pretrained(model)
    program = program_of(folder, model)
    runs = watch(program)
    exec(compile(program, "README.md", "exec"), {})
    ((found, batches),) = runs
    rows = [row for batch in batches for row in rows_of(batch, tokenizer)]
    template = get_training_chat_template(tokenizer) if "SFTTrainer" in program else None
    print(json.dumps({**found, "rows": rows, "written": written(folder, tokenizer, template)}))


def watch(program):
    """Let the trainer of a program make one step; return a list that will have its figures and batches."""
    name, given = re.search(r"^from (trl\S*) import (.*)$", program, re.MULTILINE).groups()
    module = importlib.import_module(name)
    config, trainer = (getattr(module, own) for own in given.split(", "))
    runs = []

    class Watched(trainer):
        batches = ()

        def train(self):
            self.batches, before = [], weights(self)
            loss = super().train().training_loss
            runs.append(({**figures(self, before), "finite": math.isfinite(loss)}, self.batches))

        def compute_loss(self, model, inputs, *others, **more):
            self.batches.append({own: values.tolist() for own, values in inputs.items()})
            return super().compute_loss(model, inputs, *others, **more)

    setattr(module, trainer.__name__, Watched)
    setattr(module, config.__name__, lambda **own: config(**one_step(), **own))
    return runs


def rows_of(batch, tokenizer):
    """Yield labels and text of each row of a batch, without padding."""
    for place, (ids, attended) in enumerate(zip(batch["input_ids"], batch["attention_mask"], strict=True)):
        if "completion_mask" in batch:
            masked = zip(ids, batch["completion_mask"][place], strict=True)
            labels = [own if trained else IGNORED for own, trained in masked]
        else:
            labels = batch["labels"][place]
        length = sum(attended)
        assert set(labels[length:]) <= {IGNORED}
        yield {
            "labels": labels[:length],
            "text": parts_of(ids[:length], labels[:length], tokenizer),
            "desired": batch["label"][place] if "label" in batch else None,
        }


def parts_of(ids, labels, tokenizer):
    """Return the text as pairs: a context, and the trained part after it; after the last one, nothing is trained."""
    parts = [["", ""]]
    for trained, run in groupby(zip(ids, labels, strict=True), lambda one: one[1] != IGNORED):
        text = tokenizer.decode([own for own, _ in run])
        if trained:
            parts[-1][1] = text
            parts.append(["", ""])
        else:
            parts[-1][0] = text
    return parts


def written(folder, tokenizer, template):
    """Return the texts of the conversations in the files of an export, read without `datasets`; other formats have none."""
    texts = []
    for line in (Path(folder) / "train.jsonl").read_text().splitlines():
        row = json.loads(line)
        endings = [row[name] for name in ("completion", "chosen", "rejected") if name in row]
        tools = json.loads(row["tools"]) if endings else None
        given = {"tools": tools, "chat_template": template, "tokenize": False}
        texts += [tokenizer.apply_chat_template(row["prompt"] + own, **given) for own in endings]
    return texts


if __name__ == "__main__":
    main(*sys.argv[1:])
