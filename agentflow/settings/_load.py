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
from agentflow.settings._renamed import KeyRenamer

AnySettings = TypeVar("AnySettings", bound=Settings)


def read_environment(dotenv: Path | str | None = ".env") -> dict[str, str]:
    """Return the variables of this process over those of a `.env` file; empty ones of the file are left out.

    See docs/settings.md.
    """
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
    """Load settings from a file, `.env`, `AGENTFLOW_*` variables and `key=value` overrides; the last one wins.

    Example::

        settings = load_settings(ServingSettings, "serving.yaml", ["port=8001"])

    :param arguments: values that the program itself passes; they win over all sources.
    :raises ConfigurationError: if a source can't be read, or a key or value is not valid.
    """
    renamer = KeyRenamer(model)
    try:
        sources = [
            Source("arguments", arguments or {}),
            Source("key=value", parse_overrides(overrides)),
            _variables(EnvSettingsSource(model), "environment", renamer),
            _variables(DotEnvSettingsSource(model, env_file=dotenv), str(dotenv), renamer)
            if dotenv
            else Source(".env", {}),
            Source(str(file), read_file(file, read_environment(dotenv)) if file else {}),
        ]
    except SettingsError as error:
        raise ConfigurationError(f"environment: {error}; write a list or mapping as JSON") from None
    sources = [Source(name, renamer.values(values, name)) for name, values in sources]
    renamer.warn(stacklevel=2)
    merged: dict[str, object] = {}
    for source in reversed(sources):
        merged = merge(merged, source.values)
    try:
        return model.model_validate(merged)
    except ValidationError as error:
        raise explain(error, model, sources) from None


def _variables(source: EnvSettingsSource, name: str, renamer: KeyRenamer) -> Source:
    source.env_vars = renamer.variables(
        source.env_vars, source.env_prefix.lower(), source.env_nested_delimiter or "__", name
    )
    return Source(name, source())
