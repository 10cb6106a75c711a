"""Export of a run."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from enum import StrEnum
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec

from agentflow.errors import ConfigurationError
from agentflow.exports._card import USAGE, dataset_card, side_files
from agentflow.exports._conversations import ConversationFormats
from agentflow.exports._native import (
    LONG_CONTEXT_COLUMNS,
    NATIVE_COLUMNS,
    TOKEN_COLUMNS,
    long_context_rows,
    native_rows,
    token_rows,
)
from agentflow.exports._parquet import check_parquet
from agentflow.exports._preferences import PreferenceFormats
from agentflow.exports._records import (
    Dropped,
    DropReason,
    ExportRow,
    ExportSource,
    ExportTree,
    PathExtent,
    Take,
    survey,
)
from agentflow.exports._sources import RunFiles, RunJournal, kind_of_files
from agentflow.exports._task_rows import GRPO_COLUMNS, VERL_RL_COLUMNS, TaskFormats
from agentflow.exports._writing import (
    MANIFEST,
    ExportManifest,
    ExportWriter,
    held_out,
    replaced_folder,
)
from agentflow.inspection import RunKind, RunReader, open_runs
from agentflow.models import ToolSpec
from agentflow.runs import JOURNAL_FILE


class ExportFormat(StrEnum):
    """Format of an export. The set is closed."""

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


GroupRows = Callable[[Sequence[ExportTree]], Iterator[ExportRow | Dropped]]
"""Rows of the trees of one seed or task."""


class _FormatLayout(NamedTuple):
    """Columns of a format; `take` is the default selection, `None` if answers are not selected."""

    columns: Mapping[str, Mapping[str, str]]
    take: Take | None = None
    parquet: bool = False
    tools: str = ""
    images: bool = False


_ID: Final = {"id": "string"}
_PROMPT: Final = {**_ID, "prompt": "[json]"}
_LAYOUTS: Final[Mapping[ExportFormat, _FormatLayout]] = {
    ExportFormat.TRL_SFT: _FormatLayout(
        {"train": {**_PROMPT, "completion": "[json]"}}, Take.CORRECT, tools="json", images=True
    ),
    ExportFormat.TRL_SFT_TOKENS: _FormatLayout({"train": TOKEN_COLUMNS}, Take.CORRECT),
    ExportFormat.TRL_DPO: _FormatLayout(
        {"train": {**_PROMPT, "chosen": "[json]", "rejected": "[json]", "ground": "string"}},
        tools="json",
        images=True,
    ),
    ExportFormat.TRL_KTO: _FormatLayout(
        {"train": {**_PROMPT, "completion": "[json]", "label": "bool"}}, tools="json", images=True
    ),
    ExportFormat.TRL_PRM: _FormatLayout(
        {"train": {**_ID, "prompt": "string", "completions": "[string]", "labels": "[bool]"}}
    ),
    ExportFormat.TRL_GRPO: _FormatLayout({"train": GRPO_COLUMNS}),
    ExportFormat.LONG_CONTEXT: _FormatLayout({"train": LONG_CONTEXT_COLUMNS}, Take.CORRECT),
    ExportFormat.OPENAI: _FormatLayout({"train": {"messages": "[json]"}}, Take.CORRECT, tools="[json]"),
    ExportFormat.SHAREGPT: _FormatLayout(
        {"train": {**_ID, "conversations": "[json]"}}, Take.CORRECT, tools="string", images=True
    ),
    ExportFormat.AXOLOTL: _FormatLayout(
        {"train": {**_ID, "messages": "[json]"}}, Take.CORRECT, tools="string"
    ),
    ExportFormat.VERL_RL: _FormatLayout({"train": VERL_RL_COLUMNS}, parquet=True),
    ExportFormat.VERL_SFT: _FormatLayout(
        {"train": {**_ID, "messages": "[message]"}}, Take.CORRECT, parquet=True
    ),
    ExportFormat.PARQUET: _FormatLayout(NATIVE_COLUMNS, parquet=True),
    ExportFormat.NATIVE: _FormatLayout(NATIVE_COLUMNS),
}


_TASK_COLUMNS: Final[Mapping[ExportFormat, Mapping[str, str]]] = {
    ExportFormat.TRL_GRPO: {"task": "json"},
    ExportFormat.VERL_RL: {"extra_info": "verified_task"},
}
"""Further columns for runs with verified tasks."""


def export_run(
    run: str | Path | RunReader,
    format: ExportFormat | str,
    folder: str | Path,
    *,
    take: Take | str | None = None,
    path: PathExtent | str = PathExtent.TRIMMED,
    view: str = "agent",
    split: bool = False,
    name: str = "",
) -> ExportManifest:
    """Write a run as a data set into a folder, and return its manifest. The same run gives the same bytes.

    See docs/exports.md.

    :param run: output directory of the run, its journal, a `postgresql://` URL, or its reader.
    :param format: format, such as `trl-sft`.
    :param folder: folder for the files; an earlier export there is replaced.
    :param take: answers to take; `None`: correct ones for formats of conversations, all for others.
    :param path: `trimmed`: the calls that an answer needs; `full`: the whole path of a pair.
    :param view: `agent` retells each path as one agent that calls tools.
    :param split: hold out a tenth of the seeds or tasks as `validation`.
    :param name: name of the run, if the place has several.
    :raises ConfigurationError: one line, if the run can't be read, nothing of it fits the format, or files can't be written.
    """
    kind = _choice("format", ExportFormat, format)
    layout = _LAYOUTS[kind]
    taken = _taken(kind, layout, take)
    if view != "agent":
        raise ConfigurationError(f"--view: {view} is unknown; choose agent")
    if layout.parquet:
        check_parquet(kind)
    with _opened(run, name) as source, replaced_folder(Path(folder)) as draft:
        extent = _choice("path", PathExtent, path)
        return write_export(source, kind, taken, draft, path=extent, view=view, split=split)


def write_export(
    source: ExportSource,
    kind: ExportFormat,
    take: Take,
    folder: Path,
    *,
    path: PathExtent = PathExtent.TRIMMED,
    view: str = "agent",
    split: bool,
) -> ExportManifest:
    """Write what a source has into an empty folder, and return its manifest.

    :raises ConfigurationError: one line, if nothing of it fits the format.
    """
    layout = _LAYOUTS[kind]
    groups, images, has_tasks, tools = survey(source)
    columns = {table: dict(own) for table, own in layout.columns.items()}
    if has_tasks and "train" in columns:
        columns["train"] |= _TASK_COLUMNS.get(kind, {})
    if layout.tools and tools:
        columns["train"]["tools"] = layout.tools
    if layout.images and images:
        columns["train"]["images"] = "[string]"
    rows = _rows_of(kind, tools, take, images=bool(images))
    writer = ExportWriter(
        folder,
        columns,
        parquet=layout.parquet,
        validation=held_out(groups) if split else frozenset(),
        read_image=lambda file: source.image(images[file]),
    )
    try:
        # Answers are not selected where actions are compared: their pairs show what was needed.
        whole = path is PathExtent.FULL and layout.take is not None
        for one in _rows_and_drops(source, rows, whole=whole):
            writer.add(one)
    finally:
        writer.close()
    if not writer.rows:
        raise _nothing_left(writer, take, has_tasks=has_tasks)
    manifest = ExportManifest(
        format=kind.value,
        run={"kind": source.kind, "key": source.key},
        take=take.value,
        path=path.value,
        view=view,
        split=split,
        rows=dict(sorted(writer.rows.items())),
        dropped={reason.value: count for reason, count in sorted(writer.drops.items())},
        notes=_notes(writer, has_tools=bool(tools) or not layout.tools),
        files=(),
    )
    train = columns.get("train", {})
    for file, text in side_files(kind, writer.tables.get("train", {}), train).items():
        writer.add_text(file, text)
    writer.add_text("README.md", dataset_card(manifest, writer.tables, columns, USAGE[kind]))
    manifest = msgspec.structs.replace(manifest, files=writer.files())
    writer.add_text(MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=2).decode() + "\n")
    return manifest


def _rows_and_drops(source: ExportSource, rows: GroupRows, *, whole: bool) -> Iterator[ExportRow | Dropped]:
    """Yield the rows of each group of trees, and the reason for each tree that is left out."""
    for _, trees in groupby(source.trees(), lambda tree: (tree.group, tree.draw)):
        group: list[ExportTree] = []
        for tree in trees:
            if tree.left_out is None:
                group.append(tree.with_whole_paths() if whole else tree)
            else:
                yield Dropped(tree.group, tree.id, tree.left_out)
        yield from rows(group)


def _nothing_left(writer: ExportWriter, take: Take, *, has_tasks: bool) -> ConfigurationError:
    """Return the error for an export without rows."""
    why = ", ".join(f"{count} {reason}" for reason, count in sorted(writer.drops.items()))
    hint = "" if take is Take.ALL else "; --take all takes more"
    if DropReason.NO_TOKENS in writer.drops:
        hint = "; the engine reported no tokens: set tokens=true for a model that vLLM serves"
    elif DropReason.NO_MESSAGES in writer.drops:
        hint = "; the run kept tokens and no messages: trl-sft-tokens, native and parquet contain them"
    elif has_tasks:
        hint = "; the run has verified tasks, which verl-rl, trl-grpo, native and parquet contain"
    return ConfigurationError(f"no row is left with --take {take} ({why or 'the run is empty'}){hint}")


@contextmanager
def _opened(run: str | Path | RunReader, name: str) -> Generator[ExportSource]:
    """Yield the source of a run: its journal or, for a folder without one, its files."""
    if isinstance(run, RunReader):
        yield _source_of(run)
        return
    folder = Path(run)
    is_run = "://" not in str(run) and folder.is_dir() and kind_of_files(folder) is not None
    if is_run and not (folder / JOURNAL_FILE).is_file():
        yield RunFiles(folder)
        return
    with open_runs(run) as collection:
        found = [one for one in collection.runs() if name in ("", one.name, one.id)]
        if len(found) != 1:
            choices = found or collection.runs()
            names = [one.name for one in choices]
            # Rollouts of an evaluation are named after their model.
            known = ", ".join(one.name if names.count(one.name) == 1 else one.id for one in choices)
            raise ConfigurationError(
                f"{run}: {'has several runs' if found else f'has no run {name}'}; --name one of {known}"
            )
        yield _source_of(collection.run(found[0].id))


def _source_of(run: RunReader) -> ExportSource:
    is_training = run.summary().kind in (RunKind.TRAINING, RunKind.TUNING)
    return RunFiles(Path(run.summary().folder)) if is_training else RunJournal(run)


def _taken(kind: ExportFormat, layout: _FormatLayout, take: str | None) -> Take:
    if take is None:
        return layout.take or Take.ALL
    chosen = _choice("take", Take, take)
    if layout.take is None and chosen is not Take.ALL:
        raise ConfigurationError(
            f"--take: {kind} needs right and wrong answers alike; leave out --take {chosen}"
        )
    return chosen


def _rows_of(kind: ExportFormat, tools: Sequence[ToolSpec], take: Take, *, images: bool) -> GroupRows:
    chats = ConversationFormats(tools, take, images=images)
    preferences = PreferenceFormats(chats.tools, images=images)
    tasks = TaskFormats(tools)
    rows: Mapping[ExportFormat, GroupRows] = {
        ExportFormat.TRL_SFT: chats.trl_sft,
        ExportFormat.TRL_SFT_TOKENS: partial(token_rows, take=take),
        ExportFormat.TRL_DPO: preferences.dpo,
        ExportFormat.TRL_KTO: preferences.kto,
        ExportFormat.TRL_PRM: preferences.prm,
        ExportFormat.TRL_GRPO: tasks.trl_grpo,
        ExportFormat.LONG_CONTEXT: partial(long_context_rows, take=take),
        ExportFormat.OPENAI: chats.openai,
        ExportFormat.SHAREGPT: chats.sharegpt,
        ExportFormat.AXOLOTL: chats.axolotl,
        ExportFormat.VERL_RL: tasks.verl_rl,
        ExportFormat.VERL_SFT: chats.verl_sft,
        ExportFormat.PARQUET: native_rows,
        ExportFormat.NATIVE: native_rows,
    }
    return rows[kind]


T = TypeVar("T", bound=StrEnum)


def _choice(name: str, kinds: type[T], given: str) -> T:
    known = [str(kind) for kind in kinds]
    if given not in known:
        near = get_close_matches(given, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(known)}"
        raise ConfigurationError(f"--{name}: {given} is unknown; {hint}")
    return kinds(given)


def _notes(writer: ExportWriter, *, has_tools: bool) -> tuple[str, ...]:
    notes: list[str] = []
    if not has_tools:
        notes.append("The run kept no schemas of its tools, so rows have no `tools`.")
    if writer.missing_images:
        notes.append(f"{writer.missing_images} images are no longer in the run.")
    return tuple(notes)
