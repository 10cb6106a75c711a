"""Prompts of judges as files: `prompts/<name>.v<version>.md`, in sections with placeholders."""

import re
from functools import cache
from pathlib import Path
from string import Template
from typing import Final

from agentflow.models import Message, TextPart

_FOLDER: Final = Path(__file__).parent / "prompts"
_HEADING: Final = re.compile(r"^# (\w+)\n", re.MULTILINE)


def messages(name: str, **values: str) -> tuple[Message, ...]:
    """Fill in the newest prompt of a name and return its messages. A paragraph with an empty value is left out."""
    sections = _sections(name)
    said = {each: _kept_inside(value) for each, value in values.items()}
    paragraphs = [Template(paragraph) for paragraph in sections["ask"].split("\n\n")]
    asked = [
        each.substitute(said) for each in paragraphs if all(said[name] for name in each.get_identifiers())
    ]
    return (
        Message("system", (TextPart(sections["system"]),)),
        Message("user", (TextPart("\n\n".join(asked)),)),
    )


def prompt_version(name: str) -> str:
    """Return its version, such as `v2`. A verdict belongs to one version."""
    return _file(name).suffixes[0][1:]


@cache
def _file(name: str) -> Path:
    return max(_FOLDER.glob(f"{name}.v*.md"), key=lambda path: (len(path.name), path.name))


@cache
def _sections(name: str) -> dict[str, str]:
    _, *rest = _HEADING.split(_file(name).read_text(encoding="utf-8"))
    return {heading: body.strip() for heading, body in zip(rest[::2], rest[1::2], strict=True)}


def _kept_inside(value: str) -> str:
    """Escape judged text so that it can't close its delimiters."""
    return re.sub(
        r"<(?=/?(?:answer|question|references|evidence)\b)", "‹", value.strip(), flags=re.IGNORECASE
    )
