"""Pictures of tasks, read from files."""

import mimetypes
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path

from msgspec import structs

from agentflow._typeguards import is_list
from agentflow.errors import ConfigurationError
from agentflow.trace import Blob, Task

Pictures = dict[Blob, bytes]
"""Bytes of pictures."""
_FIELDS = ("image", "images")


def read_pictures(files: Iterable[str | PathLike[str]]) -> Pictures:
    """Read the pictures of these files, in order.

    :raises ConfigurationError: one line, if one can't be read or is not a picture.
    """
    found: Pictures = {}
    for file in map(Path, files):
        mime, _ = mimetypes.guess_type(file.name)
        if mime is None or not mime.startswith("image/"):
            raise ConfigurationError(f"{file}: not a picture by its name; name a .png, .jpg, .gif or .webp")
        try:
            data = file.read_bytes()
        except OSError as error:
            raise ConfigurationError(f"{file}: can't be read: {error.strerror}") from None
        found[Blob.of(data, mime)] = data
    return found


def with_pictures(tasks: Sequence[Task], folder: Path) -> tuple[list[Task], Pictures]:
    """Return the tasks with the pictures named by their `image` or `images`, relative to the tasks' file.

    :raises ConfigurationError: one line, if one can't be read.
    """
    pictures: Pictures = {}
    shown: list[Task] = []
    for task in tasks:
        own = read_pictures(folder / name for name in _named(task))
        pictures |= own
        shown.append(structs.replace(task, images=(*task.images, *own)) if own else task)
    return shown, pictures


def _named(task: Task) -> list[str]:
    value: object = next((task.metadata[field] for field in _FIELDS if task.metadata.get(field)), None)
    return [name for name in (value if is_list(value) else [value]) if isinstance(name, str)]
