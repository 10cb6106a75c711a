"""Export of a run."""

import re
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from agentflow.errors import ConfigurationError
from agentflow.exports._conversations import ExportContext
from agentflow.exports._formats import ExportFormat, RowFormat, choose, format_of
from agentflow.exports._parquet import check_parquet
from agentflow.exports._rows import Dropped, DropReason, PathExtent, Take
from agentflow.exports._writing import (
    MANIFEST,
    ExportManifest,
    ExportWriter,
    dataset_card,
    held_out,
    replaced_folder,
)
from agentflow.inspection import RunReader, RunRecords, SeedRecord, open_records
from agentflow.models import ToolSpec
from agentflow.runs import image_file
from agentflow.trace import Blob

_IMAGE: Final = re.compile(r"images/\w[\w.-]{0,200}")


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
    :param format: format, such as `trl-sft`, or `module:name` of a `RowFormat`.
    :param folder: folder for the files; an earlier export there is replaced.
    :param take: answers to take; `None`: correct ones for formats of conversations, all for others.
    :param path: `trimmed`: the calls that an answer needs; `full`: the whole path of a pair.
    :param view: `agent` retells each path as one agent that calls tools.
    :param split: hold out a tenth of the seeds or tasks as `validation`.
    :param name: name of the run, if the place has several.
    :raises ConfigurationError: one line, if the run can't be read, nothing of it fits the format, or files can't be written.
    """
    layout = format_of(format)
    selection = _selection(format, layout, take)
    if view != "agent":
        raise ConfigurationError(f"--view: {view} is unknown; choose agent")
    if layout.parquet:
        check_parquet(format)
    opened = nullcontext(run) if isinstance(run, RunReader) else open_records(run, name)
    with opened as source, replaced_folder(Path(folder)) as draft:
        extent = choose("path", PathExtent, path)
        return write_export(source, format, selection, draft, path=extent, split=split)


def write_export(
    source: RunRecords,
    format: str,
    take: Take,
    folder: Path,
    *,
    path: PathExtent = PathExtent.TRIMMED,
    split: bool,
) -> ExportManifest:
    """Write what a source has into an empty folder, and return its manifest.

    :raises ConfigurationError: one line, if nothing of it fits the format.
    """
    layout = format_of(format)
    groups, images, has_tasks, tools = _survey(source)
    columns = {table: dict(types) for table, types in layout.columns.items()}
    train = columns.get("train", {})
    train |= layout.task_columns if has_tasks else {}
    if layout.tools and tools:
        train["tools"] = layout.tools
    if layout.images and images:
        train["images"] = "[string]"
    writer = ExportWriter(
        folder,
        columns,
        parquet=layout.parquet,
        validation=held_out(groups) if split else frozenset(),
        read_image=lambda file: source.image(images[file]),
    )
    export = ExportContext(tools=tools, take=take, has_images=bool(images))
    # Answers are not selected where actions are compared: their pairs show what was needed.
    whole = path is PathExtent.FULL and layout.take is not None
    try:
        for records in _groups(source, writer, whole=whole):
            for row in layout.rows(records, export):
                writer.add(row)
    finally:
        writer.close()
    if not writer.rows:
        raise _nothing_left(writer, take, has_tasks=has_tasks)
    manifest = ExportManifest(
        format=str(format),
        run={"kind": source.kind.value, "key": source.key},
        take=take.value,
        path=path.value,
        split=split,
        rows=dict(sorted(writer.rows.items())),
        dropped={reason.value: count for reason, count in sorted(writer.drops.items())},
        notes=_notes(writer, has_tools=bool(tools) or not layout.tools),
        files=(),
    )
    if layout.side_files is not None:
        for file, text in layout.side_files(writer.tables.get("train", {}), train).items():
            writer.add_text(file, text)
    writer.add_text("README.md", dataset_card(manifest, writer.tables, columns, layout.usage))
    manifest = replace(manifest, files=writer.files())
    writer.add_text(MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=2).decode() + "\n")
    return manifest


def _groups(source: RunRecords, writer: ExportWriter, *, whole: bool) -> Iterator[list[SeedRecord]]:
    """Yield the trees or episodes of each seed or task; those of a validation are dropped.

    :param whole: answers are on their whole paths.
    """
    for _, records in groupby(source.records(), lambda record: (record.group, record.draw)):
        group: list[SeedRecord] = []
        for record in records:
            if record.is_validation:
                writer.add(Dropped(record.group, record.id, DropReason.VALIDATION))
                continue
            answers = record.answers
            if whole:
                answers = tuple(
                    replace(answer, nodes=answer.whole_path or answer.nodes) for answer in answers
                )
            group.append(replace(record, answers=answers))
        yield group


class _Survey(NamedTuple):
    """Content of a run that all rows of an export depend on."""

    groups: list[str]
    """Ids of the seeds or tasks, each once, in order."""
    images: dict[str, Blob]
    """Images by their files."""
    has_tasks: bool
    """The trees have verified tasks."""
    tools: tuple[ToolSpec, ...]
    """Tools of the run, or of its conversations; empty: it kept no schemas."""


def _survey(source: RunRecords) -> _Survey:
    """Read a run once."""
    groups: dict[str, None] = {}
    images: dict[str, Blob] = {}
    tools = {tool.name: tool for tool in source.tools()}
    has_tasks = False
    for record in source.records():
        if record.is_validation:
            continue
        groups[record.group] = None
        shown = [node.images for node in record.nodes] + [answer.images for answer in record.answers]
        for image in (image for blobs in shown for image in blobs):
            # The run may come from elsewhere.
            if not _IMAGE.fullmatch(file := image_file(image)):
                raise ConfigurationError(f"{file!r:.200} is not the file of an image: images/NAME")
            images[file] = image
        tools.update({tool.name: tool for answer in record.answers for tool in answer.tools})
        has_tasks = has_tasks or bool(record.tasks)
    return _Survey(list(groups), images, has_tasks, tuple(tools.values()))


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


def _selection(format: str, layout: RowFormat, take: str | None) -> Take:
    if take is None:
        return layout.take or Take.ALL
    chosen = choose("take", Take, take)
    if layout.take is None and chosen is not Take.ALL:
        raise ConfigurationError(
            f"--take: {format} needs right and wrong answers alike; leave out --take {chosen}"
        )
    return chosen


def _notes(writer: ExportWriter, *, has_tools: bool) -> tuple[str, ...]:
    notes: list[str] = []
    if not has_tools:
        notes.append("The run kept no schemas of its tools, so rows have no `tools`.")
    if writer.missing_images:
        notes.append(f"{writer.missing_images} images are no longer in the run.")
    return tuple(notes)
