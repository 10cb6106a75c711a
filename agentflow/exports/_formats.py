"""Formats of exports: the only file to change for another one."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from typing import Final, TypeVar

from agentflow.errors import ConfigurationError
from agentflow.exports._conversations import GroupRows, axolotl, openai, sharegpt, trl_sft, verl_sft
from agentflow.exports._native import (
    LONG_CONTEXT_COLUMNS,
    NATIVE_COLUMNS,
    TOKEN_COLUMNS,
    long_context_rows,
    native_rows,
    token_rows,
)
from agentflow.exports._preferences import trl_dpo, trl_kto, trl_prm
from agentflow.exports._rows import Take
from agentflow.exports._task_rows import GRPO_COLUMNS, VERL_RL_COLUMNS, trl_grpo, verl_rl
from agentflow.settings import import_object


class ExportFormat(StrEnum):
    """Format of an export. Further ones are named by `module:name`; see docs/exports.md."""

    TRL_SFT = "trl-sft"
    """`prompt`, `completion` and `tools` for TRL's SFTTrainer."""
    TRL_SFT_TOKENS = "trl-sft-tokens"
    """`input_ids` and `labels` for TRL's SFTTrainer: exactly the sampled tokens."""
    TRL_DPO = "trl-dpo"
    """`prompt`, `chosen` and `rejected` for TRL's DPOTrainer."""
    TRL_KTO = "trl-kto"
    """`prompt`, `completion` and `label` for TRL's KTOTrainer."""
    TRL_PRM = "trl-prm"
    """`prompt`, `completions` and `labels` for a process reward model."""
    TRL_GRPO = "trl-grpo"
    """`prompt`, `references` and `kwargs` for TRL's GRPOTrainer."""
    LONG_CONTEXT = "long-context"
    """`prompt` with a question over all documents of its tree, and `completion`, for TRL's SFTTrainer."""
    OPENAI = "openai"
    """`messages` and `tools` for fine-tuning at OpenAI."""
    SHAREGPT = "sharegpt"
    """`conversations` for LLaMA-Factory, with `dataset_info.json`."""
    AXOLOTL = "axolotl"
    """`messages` with `training` for each, with `axolotl.yaml`."""
    VERL_RL = "verl-rl"
    """Tasks for verl's RLHFDataset, as Parquet."""
    VERL_SFT = "verl-sft"
    """`messages` for verl's MultiTurnSFTDataset, as Parquet."""
    PARQUET = "parquet"
    """The tables of `native` as Parquet."""
    NATIVE = "native"
    """Trees, nodes and model calls with tokens, masks and log-probabilities."""


@dataclass(frozen=True, kw_only=True)
class RowFormat:
    """Rows of a format, and how they are described.

    Example::

        def rows(records, export):
            for record in records:
                for answer in record.answers:
                    yield ExportRow("train", record.group, {"text": answer.question})

        QUESTIONS = RowFormat(rows=rows, columns={"train": {"text": "string"}}, usage="For any trainer.")
    """

    rows: GroupRows
    """Yields the rows of the trees or episodes of one seed or task, and `Dropped` for what is in none."""
    columns: Mapping[str, Mapping[str, str]]
    """Types of columns by name and table: `string`, `int`, `float`, `bool`, `json`, or a list of one: `[json]`."""
    usage: str
    """Text of the dataset card on how to use the rows."""
    take: Take | None = None
    """Default selection of answers; `None`: the format needs all."""
    parquet: bool = False
    """The files are Parquet instead of JSONL."""
    tools: str = ""
    """Type of the column `tools`; empty: there is none."""
    images: bool = False
    """Rows of a run with images have a column `images`."""
    task_columns: Mapping[str, str] = field(default_factory=dict[str, str])
    """Further columns for runs with verified tasks."""
    side_files: Callable[[Mapping[str, str], Mapping[str, str]], Mapping[str, str]] | None = None
    """Returns the texts of further files by name, from the file of each split and the types of columns."""


T = TypeVar("T", bound=StrEnum)


def choose(name: str, choices: type[T], value: str) -> T:
    """Return a choice by its name.

    :raises ConfigurationError: if there is none.
    """
    names = [str(choice) for choice in choices]
    if value not in names:
        near = get_close_matches(value, names, 1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(names)}"
        raise ConfigurationError(f"--{name}: {value} is unknown; {hint}")
    return choices(value)


def format_of(name: str) -> RowFormat:
    """Return a format by its name, or the one that `module:name` or `file.py:name` names.

    :raises ConfigurationError: if there is none.
    """
    if ":" not in name:
        return FORMATS[choose("format", ExportFormat, name)]
    if not isinstance(target := import_object(name), RowFormat):
        raise ConfigurationError(f"--format: {name} is no RowFormat; see docs/exports.md")
    return target


def _axolotl(splits: Mapping[str, str], _: Mapping[str, str]) -> dict[str, str]:
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
    return {"axolotl.yaml": "\n".join(lines) + "\n"}


def _dataset_info(splits: Mapping[str, str], columns: Mapping[str, str]) -> dict[str, str]:
    """Return the description that LLaMA-Factory reads: every tag, as those left out would have no default."""
    names = {"train": "agentflow", "validation": "agentflow_validation"}
    tags = {"messages": "conversations", "tools": "tools", "images": "images"}
    info = {
        names[split]: {
            "file_name": file,
            "formatting": "sharegpt",
            "columns": {name: column for name, column in tags.items() if column in columns},
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
    return {"dataset_info.json": json.dumps(info, indent=2) + "\n"}


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


_ID: Final = {"id": "string"}
_PROMPT: Final = {**_ID, "prompt": "[json]"}
FORMATS: Final[Mapping[ExportFormat, RowFormat]] = {
    ExportFormat.TRL_SFT: RowFormat(
        rows=trl_sft,
        columns={"train": {**_PROMPT, "completion": "[json]"}},
        take=Take.CORRECT,
        tools="json",
        images=True,
        usage=f"""
For `SFTTrainer` of TRL. A call that failed or gave nothing new splits its path into rows: it is in the prompt of the
later one and in no completion. Without `assistant_only_loss=True` results of tools are trained, too; without
`max_length=None` TRL cuts rows at 1,024 tokens.
{_trl("SFT", "assistant_only_loss=True")}""",
    ),
    ExportFormat.TRL_SFT_TOKENS: RowFormat(
        rows=token_rows,
        columns={"train": TOKEN_COLUMNS},
        take=Take.CORRECT,
        usage=f"""
For `SFTTrainer` of TRL, which uses `input_ids` and `labels` as they are. Each sampled token is a label in exactly one row, all
others are -100. Name the model that sampled them. Without `max_length=None` TRL cuts rows at 1,024 tokens.
{_trl("SFT")}""",
    ),
    ExportFormat.TRL_DPO: RowFormat(
        rows=trl_dpo,
        columns={"train": {**_PROMPT, "chosen": "[json]", "rejected": "[json]", "ground": "string"}},
        tools="json",
        images=True,
        usage=f"""
For `DPOTrainer` of TRL. `chosen` and `rejected` are the next message after the same `prompt`, and `ground` says why one is better:
`reward` (no episode with the rejected one has a higher score), `verdict` (the rejected call failed or gave nothing new) or `evidence`
(a question rests on the chosen action, and none on anything from the rejected one on). Without `max_length=None` TRL cuts rows at 1,024 tokens.
{_trl("DPO")}""",
    ),
    ExportFormat.TRL_KTO: RowFormat(
        rows=trl_kto,
        columns={"train": {**_PROMPT, "completion": "[json]", "label": "bool"}},
        tools="json",
        images=True,
        usage=f"""
For `KTOTrainer` of TRL, with at least two rows per batch. `completion` is the next message after `prompt`; `label` says if its
observation was new, or, of episodes, if more than half of those that made it were right. Without `max_length=None` TRL cuts
rows at 1,024 tokens.
{_trl("KTO")}""",
    ),
    ExportFormat.TRL_PRM: RowFormat(
        rows=trl_prm,
        columns={"train": {**_ID, "prompt": "string", "completions": "[string]", "labels": "[bool]"}},
        usage=f"""
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
    ),
    ExportFormat.TRL_GRPO: RowFormat(
        rows=trl_grpo,
        columns={"train": GRPO_COLUMNS},
        task_columns={"task": "json"},
        usage=f"""
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
    ),
    ExportFormat.LONG_CONTEXT: RowFormat(
        rows=long_context_rows,
        columns={"train": LONG_CONTEXT_COLUMNS},
        take=Take.CORRECT,
        usage=f"""
For `SFTTrainer` of TRL. `prompt` is a question below all documents of its tree in any order, `completion` its answer; `needed` are the
numbers of the documents without which it can't be answered. Without `max_length=None` TRL cuts rows at 1,024 tokens.
{_trl("SFT")}""",
    ),
    ExportFormat.OPENAI: RowFormat(
        rows=openai,
        columns={"train": {"messages": "[json]"}},
        take=Take.CORRECT,
        tools="[json]",
        usage="""
For fine-tuning at OpenAI, and for every trainer of that format. Messages of the model that failed or gave nothing new have
`"weight": 0`. Images are files of this folder: upload them and replace their paths by addresses.
""",
    ),
    ExportFormat.SHAREGPT: RowFormat(
        rows=sharegpt,
        columns={"train": {**_ID, "conversations": "[json]"}},
        take=Take.CORRECT,
        tools="string",
        images=True,
        side_files=_dataset_info,
        usage="""
For LLaMA-Factory: `dataset_dir: FOLDER`, `dataset: agentflow`; `dataset_info.json` describes the columns. Roles alternate
strictly. A turn `function_call` is a JSON list of calls, without the reason for them. Calls that failed or gave nothing new
are left out with their results, because this format can't mask them.
""",
    ),
    ExportFormat.AXOLOTL: RowFormat(
        rows=axolotl,
        columns={"train": {**_ID, "messages": "[json]"}},
        take=Take.CORRECT,
        tools="string",
        side_files=_axolotl,
        usage="""
For axolotl: `axolotl.yaml` has the section `datasets`. Arguments and tools are JSON text; each message has `training`, false for
calls that failed or gave nothing new.
""",
    ),
    ExportFormat.VERL_RL: RowFormat(
        rows=verl_rl,
        columns={"train": VERL_RL_COLUMNS},
        task_columns={"extra_info": "verified_task"},
        parquet=True,
        usage="""
For `RLHFDataset` of verl. `extra_info.index` numbers the rows; `extra_info.tools_kwargs` has the arguments that a task fixes, by
tool; `extra_info.task` is a verified task with its verifier and its solution, if the run has them. verl has no reward for `data_source: agentflow`: name your own with `custom_reward_function`; `extra_info.answers` lists all
reference answers.
""",
    ),
    ExportFormat.VERL_SFT: RowFormat(
        rows=verl_sft,
        columns={"train": {**_ID, "messages": "[message]"}},
        take=Take.CORRECT,
        parquet=True,
        usage="""
For `MultiTurnSFTDataset` of verl, which reads Parquet with pandas: nested JSON would get null fields, so calls and tools are text in
the notation of Hermes, as the templates of Qwen 2.5 and 3 write it. Calls that failed or gave nothing new are left out with
their results, because this format can't mask them.
""",
    ),
    ExportFormat.PARQUET: RowFormat(
        rows=native_rows,
        columns=NATIVE_COLUMNS,
        parquet=True,
        usage="""
The tables of `native` as Parquet: trees, nodes, verified tasks and model calls. JSON columns are strings, which `datasets` decodes.
""",
    ),
    ExportFormat.NATIVE: RowFormat(
        rows=native_rows,
        columns=NATIVE_COLUMNS,
        usage="""
Trees, nodes, verified tasks and model calls, each row with the id of its tree. A call has the tokens that were read and sampled, with their
log-probabilities; `row`, `start` and `stop` are its place in the rows of `trl-sft-tokens`, and all other tokens are masked.

```python
from datasets import load_dataset

nodes = load_dataset("FOLDER", "nodes", split="train")
```
""",
    ),
}
