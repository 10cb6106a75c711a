import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from dotenv import dotenv_values
from pydantic import ValidationError
from pydantic_settings import DotEnvSettingsSource, EnvSettingsSource, SettingsError

from agentflow.errors import ConfigurationError
from agentflow.settings._explain import Source, explain
from agentflow.settings._file import read_file
from agentflow.settings._model import Settings
from agentflow.settings._overrides import merge, parse_overrides

AnySettings = TypeVar("AnySettings", bound=Settings)


def surroundings(dotenv: Path | str | None = ".env") -> dict[str, str]:
    """What `.env` says, and over it this process's environment."""
    in_dotenv = {key: value for key, value in dotenv_values(dotenv).items() if value} if dotenv else {}
    return {**in_dotenv, **os.environ}


def load_settings(
    model: type[AnySettings],
    file: Path | str | None = None,
    overrides: Iterable[str] = (),
    *,
    dotenv: Path | str | None = ".env",
    arguments: Mapping[str, object] | None = None,
) -> AnySettings:
    """Settings from a file, then `.env`, then `AGENTFLOW_*` variables, then `key=value` words: the last one wins.

    :param arguments: what a program says itself; it wins over all of them.
    :raises ConfigurationError: one line, if anything in them can't be used.
    """
    try:
        sources = [
            Source("arguments", arguments or {}),
            Source("key=value", parse_overrides(overrides)),
            Source("environment", EnvSettingsSource(model)()),
            Source(str(dotenv), DotEnvSettingsSource(model, env_file=dotenv)() if dotenv else {}),
            Source(str(file), read_file(file, surroundings(dotenv)) if file else {}),
        ]
    except SettingsError as error:
        raise ConfigurationError(f"environment: {error}; write a list or mapping as JSON") from None
    values: dict[str, object] = {}
    for source in reversed(sources):
        values = merge(values, source.values)
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise explain(error, model, sources) from None
