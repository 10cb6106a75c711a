"""Prompts as files: `prompts/<name>.v<version>.md`, in sections, filled in by name."""

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from string import Template

__all__ = ["prompt", "prompt_versions"]

_FOLDER = Path(__file__).parent / "prompts"
_FILE = re.compile(r"(?P<name>[a-z]+)\.(?P<version>v\d+)\.md")
_HEADING = re.compile(r"^# (\w+)\n", re.MULTILINE)


def prompt(name: str, section: str, **values: object) -> str:
    """A section of a prompt, filled in. A paragraph with a value that is empty is left out."""
    said = {each: str(value) for each, value in values.items()}
    filled = [
        paragraph.format_map(said).strip()
        for paragraph, asked in _sections(name)[section]
        if all(map(said.__getitem__, asked))
    ]
    return "\n\n".join(filled)


def prompt_versions() -> Mapping[str, str]:
    """Each prompt with its version. What was asked with other versions may have been answered otherwise."""
    return {name: version for name, (version, _) in _files().items()}


@lru_cache
def _files() -> dict[str, tuple[str, Path]]:
    """The newest version of each prompt."""
    found: dict[str, tuple[str, Path]] = {}
    for path in sorted(_FOLDER.iterdir(), key=lambda path: (len(path.name), path.name)):
        if match := _FILE.fullmatch(path.name):
            found[match["name"]] = (match["version"], path)
    return dict(sorted(found.items()))


@lru_cache
def _sections(name: str) -> dict[str, list[tuple[str, list[str]]]]:
    """The paragraphs of each section, with what is to be filled in there."""
    _, path = _files()[name]
    _, *rest = _HEADING.split(path.read_text(encoding="utf-8"))
    sections: dict[str, list[tuple[str, list[str]]]] = {}
    for heading, body in zip(rest[::2], rest[1::2], strict=True):
        paragraphs = map(Template, body.strip().split("\n\n"))
        sections[heading] = [(_format(paragraph), paragraph.get_identifiers()) for paragraph in paragraphs]
    return sections


def _format(paragraph: Template) -> str:
    """The same for `str.format_map`, which is many times quicker."""
    plain = paragraph.template.replace("{", "{{").replace("}", "}}")
    return Template(plain).substitute({name: f"{{{name}}}" for name in paragraph.get_identifiers()})
