"""Export of a run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec

from agentflow.errors import ConfigurationError
from agentflow.exports._card import dataset_card
from agentflow.exports._conversations import ConversationFormats
from agentflow.exports._native import NATIVE_COLUMNS, native_rows
from agentflow.exports._parquet import check_parquet
from agentflow.exports._records import ExportTree
from agentflow.exports._rows import Dropped, ExportRow, Take
from agentflow.exports._run_files import RunFiles
from agentflow.exports._usage import USAGE, side_files
from agentflow.exports._writing import (
    MANIFEST,
    ExportManifest,
    ExportWriter,
    held_out,
    replaced_folder,
)


class ExportFormat(StrEnum):
    """Format of an export. The set is closed."""

    TRL_SFT = "trl-sft"
    """`prompt`, `completion` and `tools` for TRL's SFTTrainer."""
    OPENAI = "openai"
    """`messages` and `tools` for fine-tuning at OpenAI."""
    SHAREGPT = "sharegpt"
    """`conversations` for LLaMA-Factory, with `dataset_info.json`."""
    NATIVE = "native"
    """Trees, nodes and model calls with tokens, masks and log-probabilities."""


GroupRows = Callable[[Sequence[ExportTree]], Iterator[ExportRow | Dropped]]
"""Rows of the trees of one seed or task."""


class _Layout(NamedTuple):
    """Columns of a format and the default selection."""

    columns: Mapping[str, Mapping[str, str]]
    take: Take
    parquet: bool = False
    has_tools: bool = True


_COMMON: Final = {"id": "string"}
_LAYOUTS: Final[Mapping[ExportFormat, _Layout]] = {
    ExportFormat.TRL_SFT: _Layout(
        {"train": {**_COMMON, "prompt": "[json]", "completion": "[json]"}}, Take.CORRECT
    ),
    ExportFormat.OPENAI: _Layout({"train": {"messages": "[json]"}}, Take.CORRECT),
    ExportFormat.SHAREGPT: _Layout({"train": {**_COMMON, "conversations": "[json]"}}, Take.CORRECT),
    ExportFormat.NATIVE: _Layout(NATIVE_COLUMNS, Take.ALL, has_tools=False),
}


def export_run(
    run: str | Path,
    format: ExportFormat | str,
    folder: str | Path,
    *,
    take: Take | str | None = None,
    view: str = "agent",
    split: bool = False,
) -> ExportManifest:
    """Write a run as a data set into a folder, and return its manifest. The same run gives the same bytes.

    See docs/exports.md.

    :param run: output directory of the run.
    :param format: format, such as `trl-sft`.
    :param folder: folder for the files; an earlier export there is replaced.
    :param take: answers to take; `None`: correct ones for formats of conversations, all for others.
    :param view: `agent` retells each path as one agent that calls tools.
    :param split: hold out a tenth of the seeds or tasks as `validation`.
    :raises ConfigurationError: one line, if the run can't be read, nothing of it fits the format, or files can't be written.
    """
    kind = _choice("format", ExportFormat, format)
    layout = _LAYOUTS[kind]
    taken = layout.take if take is None else _choice("take", Take, take)
    if view != "agent":
        raise ConfigurationError(f"--view: {view} is unknown; choose agent")
    if layout.parquet:
        check_parquet(kind)
    source = RunFiles(Path(run))
    groups, images = source.survey()
    tools = source.tools()
    columns = {table: dict(own) for table, own in layout.columns.items()}
    if layout.has_tools:
        columns["train"] |= {"tools": "[json]" if kind is ExportFormat.OPENAI else "json"} if tools else {}
        columns["train"] |= {"images": "[string]"} if images and kind is not ExportFormat.OPENAI else {}
    chats = ConversationFormats(tools, taken, images=images)
    rows: Mapping[ExportFormat, GroupRows] = {
        ExportFormat.TRL_SFT: chats.trl_sft,
        ExportFormat.OPENAI: chats.openai,
        ExportFormat.SHAREGPT: chats.sharegpt,
        ExportFormat.NATIVE: native_rows,
    }
    with replaced_folder(Path(folder)) as draft:
        validation = held_out(groups) if split else frozenset[str]()
        writer = ExportWriter(
            draft, columns, parquet=layout.parquet, validation=validation, read_image=source.image
        )
        try:
            for _, trees in groupby(source.trees(), lambda tree: tree.group):
                for one in rows[kind](list(trees)):
                    writer.add(one)
        finally:
            writer.close()
        if not writer.rows:
            why = ", ".join(f"{count} {reason}" for reason, count in sorted(writer.drops.items()))
            raise ConfigurationError(f"{run}: nothing fits {kind} with take={taken}: {why or 'it is empty'}")
        notes = _notes(writer, has_tools=bool(tools) or not layout.has_tools)
        manifest = ExportManifest(
            format=kind.value,
            run={"kind": source.kind, "key": source.key},
            take=taken.value,
            view=view,
            split=split,
            rows=dict(sorted(writer.rows.items())),
            dropped={reason.value: count for reason, count in sorted(writer.drops.items())},
            notes=notes,
            files=(),
        )
        for name, text in side_files(kind, writer.tables.get("train", {}), columns.get("train", {})).items():
            writer.add_text(name, text)
        card = dataset_card(manifest, writer.tables, columns, USAGE[kind])
        writer.add_text("README.md", card)
        manifest = msgspec.structs.replace(manifest, files=writer.files())
        writer.add_text(
            MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=2).decode() + "\n"
        )
    return manifest


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
