"""Prompts as files, in sections with placeholders."""

import re
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from string import Template

_FILE = re.compile(r"(?P<name>[a-z_]+)\.(?P<version>v\d+)\.md")
_HEADING = re.compile(r"^# (\w+)\n", re.MULTILINE)


class PromptFiles:
    """Prompts of a folder: files `<name>.v<version>.md`, of which the newest counts.

    A file has sections with headings such as `# system`, and placeholders such as `$question`.
    """

    def __init__(self, folder: Path) -> None:
        """Describe the prompts; each file is read once, when it is needed."""
        self._folder = folder

    @cached_property
    def _newest(self) -> dict[str, tuple[str, Path]]:
        """Version and file of each prompt."""
        newest: dict[str, tuple[str, Path]] = {}
        for path in sorted(self._folder.iterdir(), key=lambda path: (len(path.name), path.name)):
            if match := _FILE.fullmatch(path.name):
                newest[match["name"]] = (match["version"], path)
        return dict(sorted(newest.items()))

    @property
    def versions(self) -> Mapping[str, str]:
        """Version of each prompt, such as `v2`."""
        return {name: version for name, (version, _) in self._newest.items()}

    def fill(self, name: str, section: str, **values: object) -> str:
        """Return a section of a prompt, filled in. A paragraph with an empty value is omitted."""
        texts = {key: str(value) for key, value in values.items()}
        filled = [
            paragraph.format_map(texts).strip()
            for paragraph, names in _sections(self._newest[name][1])[section]
            if all(map(texts.__getitem__, names))
        ]
        return "\n\n".join(filled)


@cache
def _sections(path: Path) -> dict[str, list[tuple[str, list[str]]]]:
    """Return the paragraphs of each section with the names of their values."""
    _, *rest = _HEADING.split(path.read_text(encoding="utf-8"))
    sections: dict[str, list[tuple[str, list[str]]]] = {}
    for heading, body in zip(rest[::2], rest[1::2], strict=True):
        paragraphs = map(Template, body.strip().split("\n\n"))
        sections[heading] = [(_format(paragraph), paragraph.get_identifiers()) for paragraph in paragraphs]
    return sections


def _format(paragraph: Template) -> str:
    """Convert a template for `str.format_map`, which is many times faster."""
    plain = paragraph.template.replace("{", "{{").replace("}", "}}")
    return Template(plain).substitute({name: f"{{{name}}}" for name in paragraph.get_identifiers()})
