"""Removal of this machine's paths from what leaves it: bundles and reports."""

import re
from typing import Final

from msgspec import structs

from agentflow._secrets import mask_settings
from agentflow._typeguards import is_list_or_tuple, is_mapping
from agentflow.inspection import RunSummary

_WHOLE: Final = re.compile(
    r"(?:~[\w.-]*|[A-Za-z]:)?[\\/](?![^\n]*[\s,;:'\"]+[~/\\])(?:[^\n]*[\\/])?([^\n\\/]+)[\\/]*"
)
_INSIDE: Final = re.compile(
    r"(?:(?<![\w.~/\\<-])(?!(?<=:)//)|(?<=\bsqlite:///)|(?<=\bfile://))"
    r"(?:~[\w.-]*|[A-Za-z]:)?[\\/]+(?:[^\s\"'`<>|\\/:;,()]+[\\/]+)*([^\s\"'`<>|\\/:;,()]+)[\\/]*"
)


def without_paths(text: str) -> str:
    """Return a text with only the last name of each absolute path.

    >>> without_paths("/data/own/ferries.csv")
    '…/ferries.csv'
    >>> without_paths("No such file: '/data/own/a.txt'; see https://a.example/b/c and data/d.txt")
    "No such file: '…/a.txt'; see https://a.example/b/c and data/d.txt"
    """
    return _WHOLE.sub(r"…/\1", text) if _WHOLE.fullmatch(text) else _INSIDE.sub(r"…/\1", text)


def shared_summary(run: RunSummary) -> RunSummary:
    """Return a run without folders, paths and secrets of this machine."""
    settings = {name: _shared(mask_settings(own, name)) for name, own in run.settings.items()}
    models = {role: without_paths(model) for role, model in run.models.items()}
    return structs.replace(run, folder="", settings=settings, models=models)


def _shared(value: object) -> object:
    if isinstance(value, str):
        return without_paths(value)
    if is_mapping(value):
        return {without_paths(name): _shared(own) for name, own in value.items()}
    return [_shared(own) for own in value] if is_list_or_tuple(value) else value
