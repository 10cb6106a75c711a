"""Texts and files that tell trainers how to read the rows of a format."""

import json
from collections.abc import Mapping
from typing import Any, Final

USAGE: Final[Mapping[str, str]] = {
    "trl-sft": """
For `SFTTrainer` of TRL. A call that failed or gave nothing new splits its path into rows: it is in the prompt of the
later one and in no completion. Set `assistant_only_loss=True`, else results of tools are trained, too, and
`max_length=None`, else TRL cuts rows at 1,024 tokens.

```python
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

rows = load_dataset("FOLDER", split="train")
args = SFTConfig(assistant_only_loss=True, max_length=None)
SFTTrainer(model="Qwen/Qwen3-0.6B", args=args, train_dataset=rows).train()
```
""",
    "openai": """
For fine-tuning at OpenAI, and for every trainer of that format. Messages of the model that failed or gave nothing new have
`"weight": 0`. Images are files of this folder: upload them and replace their paths by addresses.
""",
    "sharegpt": """
For LLaMA-Factory: `dataset_dir: FOLDER`, `dataset: agentflow`; `dataset_info.json` describes the columns. Roles alternate
strictly. A turn `function_call` is a JSON list of calls, without the reason for them. Calls that failed or gave nothing new
are left out with their results, because this format can't mask them.
""",
    "native": """
Trees, nodes and model calls, each row with the id of its tree. A call has the tokens that were read and sampled, with their
log-probabilities; `row`, `start` and `stop` are its place in the rows of `trl-sft-tokens`, and all other tokens are masked.

```python
from datasets import load_dataset

nodes = load_dataset("FOLDER", "nodes", split="train")
```
""",
}
"""Text of the dataset card, by format."""


def side_files(format: str, splits: Mapping[str, str], columns: Mapping[str, str]) -> dict[str, str]:
    """Return further files of a format: their texts by name.

    :param splits: file of each split.
    :param columns: types of columns by name.
    """
    if format == "sharegpt":
        return {"dataset_info.json": json.dumps(_dataset_info(splits, columns), indent=2) + "\n"}
    return {}


def _dataset_info(splits: Mapping[str, str], columns: Mapping[str, str]) -> dict[str, Any]:
    """Return the description that LLaMA-Factory reads: every tag, as those left out would have no default."""
    names = {"train": "agentflow", "validation": "agentflow_validation"}
    known = {"messages": "conversations", "tools": "tools", "images": "images"}
    return {
        names[split]: {
            "file_name": file,
            "formatting": "sharegpt",
            "columns": {name: column for name, column in known.items() if column in columns},
            "tags": {
                "role_tag": "from",
                "content_tag": "value",
                "user_tag": "human",
                "assistant_tag": "gpt",
                "observation_tag": "observation",
                "function_tag": "function_call",
                "system_tag": "system",
            },
        }
        for split, file in splits.items()
    }
