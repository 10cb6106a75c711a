"""Dataset card of an export, and files that tell trainers how to read it."""

import json
from collections.abc import Mapping
from typing import Any, Final

import yaml

from agentflow.exports._records import COLUMNS, STRUCTS
from agentflow.exports._writing import DROPPED, ExportManifest

_AGENT: Final = (
    "The conversations retell each path as one agent that calls tools. No model read these prompts: in the run, a planner,\n"
    "an executor and a verifier read prompts of their own."
)
_RECORDED: Final = (
    "The conversations are those that agents had with a model through the gateway, message by message."
)
_CALLS: Final = "Each row is what model calls read and sampled, token for token."


def dataset_card(
    manifest: ExportManifest,
    tables: Mapping[str, Mapping[str, str]],
    columns: Mapping[str, Mapping[str, str]],
    usage: str,
) -> str:
    """Return the card.

    :param tables: file of each split, by table.
    :param columns: types of columns by name and table.
    :param usage: text on how to use the rows.
    """
    alone = set(tables) == {"train"}
    names = {table: "default" if alone else table for table in tables}
    configs = [
        {
            "config_name": names[table],
            "data_files": [{"split": split, "path": path} for split, path in splits.items()],
        }
        for table, splits in tables.items()
    ]
    infos = [
        {
            "config_name": names[table],
            "features": _features(columns[table]),
        }
        for table in tables
    ]
    run = manifest.run
    head: dict[str, Any] = {
        "pretty_name": f"{run['kind']} {run['key'][:8]} as {manifest.format}",
        "tags": ["agentflow", "agent-trajectories", manifest.format],
        "configs": configs,
        "dataset_info": infos[0] if len(infos) == 1 else infos,
    }
    front = yaml.safe_dump(head, sort_keys=False, allow_unicode=True, width=120)
    return f"---\n{front}---\n\n" + "\n\n".join(_body(manifest, usage)) + "\n"


def _body(manifest: ExportManifest, usage: str) -> list[str]:
    run = manifest.run
    how = f"with `--take {manifest.take}`, `--path {manifest.path}` and `--view {manifest.view}`"
    parts = [
        f"# {manifest.format}",
        f"Written by `agentflow export` from the {run['kind']} `{run['key']}`, {how}.",
        _origin(manifest),
        usage.strip(),
        _table(("file", "rows"), [(f"`{name}`", str(count)) for name, count in manifest.rows.items()]),
    ]
    if manifest.split:
        parts.append("`validation` holds a tenth of the seeds or tasks; no seed or task is in both.")
    if manifest.dropped:
        counts = [(f"`{reason}`", str(count)) for reason, count in manifest.dropped.items()]
        parts += [f"Left out; `{DROPPED}` names each:", _table(("reason", "number"), counts)]
    parts += [f"- {note}" for note in manifest.notes]
    return parts


def _origin(manifest: ExportManifest) -> str:
    """Return the origin of the rows."""
    if manifest.format == "trl-sft-tokens":
        return _CALLS
    return _RECORDED if manifest.run["kind"] in ("tuning", "gateway") else _AGENT


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _card_type(kind: str) -> dict[str, Any]:
    """Return a column type in the notation of dataset cards."""
    inner = kind.strip("[]")
    is_list = kind.startswith("[")
    if fields := STRUCTS.get(inner):
        return {"list" if is_list else "struct": _features(fields)}
    return {"list": COLUMNS[inner]} if is_list else {"dtype": COLUMNS[inner]}


def _features(columns: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, **_card_type(kind)} for name, kind in columns.items()]


_MODEL: Final = "Qwen/Qwen3-0.6B"


def _trl(trainer: str, *arguments: str) -> str:
    """Return the program that trains on an export by a trainer of TRL. TRL cuts rows at 1,024 tokens by default."""
    args = ", ".join(("max_length=None", *arguments))
    return f"""
```python
from datasets import load_dataset
from trl import {trainer}Config, {trainer}Trainer

rows = load_dataset("FOLDER", split="train")
args = {trainer}Config({args})
{trainer}Trainer(model="{_MODEL}", args=args, train_dataset=rows).train()
```
"""


USAGE: Final[Mapping[str, str]] = {
    "trl-sft": f"""
For `SFTTrainer` of TRL. A call that failed or gave nothing new splits its path into rows: it is in the prompt of the
later one and in no completion. Without `assistant_only_loss=True` results of tools are trained, too; without
`max_length=None` TRL cuts rows at 1,024 tokens.
{_trl("SFT", "assistant_only_loss=True")}""",
    "trl-sft-tokens": f"""
For `SFTTrainer` of TRL, which uses `input_ids` and `labels` as they are. Each sampled token is a label in exactly one row, all
others are -100. Name the model that sampled them. Without `max_length=None` TRL cuts rows at 1,024 tokens.
{_trl("SFT")}""",
    "trl-dpo": f"""
For `DPOTrainer` of TRL. `chosen` and `rejected` are the next message after the same `prompt`, and `ground` says why one is better:
`reward` (no episode with the rejected one has a higher score), `verdict` (the rejected call failed or gave nothing new) or `evidence`
(a question rests on the chosen action, and none on anything from the rejected one on). Without `max_length=None` TRL cuts rows at 1,024 tokens.
{_trl("DPO")}""",
    "trl-kto": f"""
For `KTOTrainer` of TRL, with at least two rows per batch. `completion` is the next message after `prompt`; `label` says if its
observation was new, or, of episodes, if more than half of those that made it were right. Without `max_length=None` TRL cuts
rows at 1,024 tokens.
{_trl("KTO")}""",
    "trl-prm": f"""
For process reward models: each step is a call with its result, or the answer, as text in the notation of Hermes, with a label.
The last TRL with a trainer for these rows is 1.13. Without `max_length=None` it cuts rows at 1,024 tokens.

```python
from datasets import load_dataset
from transformers import AutoModelForTokenClassification, AutoTokenizer
from trl.experimental.prm import PRMConfig, PRMTrainer

rows = load_dataset("FOLDER", split="train")
model = AutoModelForTokenClassification.from_pretrained("{_MODEL}", num_labels=2)
tokenizer = AutoTokenizer.from_pretrained("{_MODEL}")
args = PRMConfig(max_length=None)
PRMTrainer(model, args, train_dataset=rows, processing_class=tokenizer).train()
```
""",
    "trl-grpo": f"""
For `GRPOTrainer` of TRL. `references` are the reference answers, `kwargs` the arguments that a task fixes; rewards and
environments get both. `task` is a verified task with its verifier and its solution, if the run has them. Tools need a template that TRL can read calls from, such as that of Qwen 3.

```python
from datasets import load_dataset
from trl import GRPOTrainer

from agentflow.exports import SandboxEnvironments


def correct(completions, references, **_):
    return [float(said[-1]["content"] in known) for said, known in zip(completions, references)]


rows = load_dataset("FOLDER", split="train")
with SandboxEnvironments(backends=["bash"], tools=["bash:run"]) as environments:
    GRPOTrainer("{_MODEL}", correct, train_dataset=rows, environment_factory=environments).train()
```
""",
    "long-context": f"""
For `SFTTrainer` of TRL. `prompt` is a question below all documents of its tree in any order, `completion` its answer; `needed` are the
numbers of the documents without which it can't be answered. Without `max_length=None` TRL cuts rows at 1,024 tokens.
{_trl("SFT")}""",
    "openai": """
For fine-tuning at OpenAI, and for every trainer of that format. Messages of the model that failed or gave nothing new have
`"weight": 0`. Images are files of this folder: upload them and replace their paths by addresses.
""",
    "sharegpt": """
For LLaMA-Factory: `dataset_dir: FOLDER`, `dataset: agentflow`; `dataset_info.json` describes the columns. Roles alternate
strictly. A turn `function_call` is a JSON list of calls, without the reason for them. Calls that failed or gave nothing new
are left out with their results, because this format can't mask them.
""",
    "axolotl": """
For axolotl: `axolotl.yaml` has the section `datasets`. Arguments and tools are JSON text; each message has `training`, false for
calls that failed or gave nothing new.
""",
    "verl-rl": """
For `RLHFDataset` of verl. `extra_info.index` numbers the rows; `extra_info.tools_kwargs` has the arguments that a task fixes, by
tool; `extra_info.task` is a verified task with its verifier and its solution, if the run has them. verl has no reward for `data_source: agentflow`: name your own with `custom_reward_function`; `extra_info.answers` lists all
reference answers.
""",
    "verl-sft": """
For `MultiTurnSFTDataset` of verl, which reads Parquet with pandas: nested JSON would get null fields, so calls and tools are text in
the notation of Hermes, as the templates of Qwen 2.5 and 3 write it. Calls that failed or gave nothing new are left out with
their results, because this format can't mask them.
""",
    "parquet": """
The tables of `native` as Parquet: trees, nodes, verified tasks and model calls. JSON columns are strings, which `datasets` decodes.
""",
    "native": """
Trees, nodes, verified tasks and model calls, each row with the id of its tree. A call has the tokens that were read and sampled, with their
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
    if format == "axolotl":
        return {"axolotl.yaml": _axolotl(splits)}
    return {}


def _axolotl(splits: Mapping[str, str]) -> str:
    """Return the section of a settings file of axolotl; paths are those in this folder."""
    names = {"train": "datasets", "validation": "test_datasets"}
    lines: list[str] = []
    for split, file in splits.items():
        lines += [
            f"{names[split]}:",
            f"  - path: {file}",
            "    ds_type: json",
            "    split: train",
            "    type: chat_template",
            "    field_messages: messages",
            "    field_tools: tools",
            "    message_field_training: training",
            "    roles_to_train: []",
            "    train_on_eos: turn",
        ]
    return "\n".join(lines) + "\n"


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
