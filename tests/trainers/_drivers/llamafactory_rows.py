"""Load an exported folder as LLaMA-Factory does: `llamafactory_rows.py FOLDER TINY_MODEL_PROGRAM`.

Prints one JSON object: the converted conversations and, of each tokenized row, the text that is trained.
"""

import importlib.machinery
import json
import runpy
import sys
import tempfile
import types

# Sound is not read here, and the registry has no build of it for the CPU.
torchaudio = types.ModuleType("torchaudio")
torchaudio.__spec__ = importlib.machinery.ModuleSpec("torchaudio", None)
sys.modules["torchaudio"] = torchaudio

from llamafactory.data.loader import _get_merged_dataset, get_dataset  # noqa: E402
from llamafactory.data.template import get_template_and_fix_tokenizer  # noqa: E402
from llamafactory.hparams import DataArguments, ModelArguments  # noqa: E402
from transformers import Seq2SeqTrainingArguments  # noqa: E402


def main(folder, program):
    """Load the folder and print what came of it."""
    tokenizer = runpy.run_path(program)["tiny_tokenizer"](512, texts=["tools are called in JSON"])
    data = DataArguments(
        template="qwen3",
        dataset="agentflow",
        dataset_dir=folder,
        media_dir=folder,
        cutoff_len=1_000_000,
        overwrite_cache=True,
    )
    model = ModelArguments(model_name_or_path="tiny", cache_dir=tempfile.mkdtemp())
    training = Seq2SeqTrainingArguments(
        output_dir=tempfile.mkdtemp(), report_to=[], use_cpu=True, log_level="error"
    )
    converted = _get_merged_dataset(data.dataset, model, data, training, "sft")
    template = get_template_and_fix_tokenizer(tokenizer, data)
    module = get_dataset(template, model, data, training, "sft", tokenizer)
    rows = [
        {
            "roles": [message["role"] for message in row["_prompt"] + row["_response"]],
            "calls": [
                json.loads(one["content"])
                for one in row["_prompt"] + row["_response"]
                if one["role"] == "function"
            ],
            "answer": [message["content"] for message in row["_response"]],
            "tools": json.loads(row["_tools"]) if row["_tools"] else None,
        }
        for row in converted
    ]
    trained = [
        tokenizer.decode([label for label in row["labels"] if label != -100])
        for row in module["train_dataset"]
    ]
    print(json.dumps({"rows": rows, "trained": trained}))


if __name__ == "__main__":
    main(*sys.argv[1:])
