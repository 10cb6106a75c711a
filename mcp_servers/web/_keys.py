"""Keys and addresses of services: from the settings, else from the environment; and what can't work without them."""

from collections.abc import Mapping
from typing import cast, get_args

from pydantic import SecretStr

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.web._parsers import not_installed
from mcp_servers.web._settings import Engine, WebSettings

__all__ = ["engine_of", "key_of", "unusable", "with_environment"]

ENVIRONMENT = {
    "serper_api_key": "SERPER_API_KEY",
    "google_api_key": "GOOGLE_API_KEY",
    "google_cx": "GOOGLE_CX",
    "gemini_api_key": "GEMINI_API_KEY",
    "searxng_url": "SEARXNG_URL",
    "jina_api_key": "JINA_API_KEY",
    "openai_api_key": "OPENAI_API_KEY",
}
"""The variable of each setting that may come from the environment."""

NEEDS: Mapping[Engine, tuple[str, ...]] = {
    "serper": ("serper_api_key",),
    "google": ("google_api_key", "google_cx"),
    "gemini": ("gemini_api_key",),
    "searxng": ("searxng_url",),
}
"""What each way to search can't do without."""


def with_environment(settings: Mapping[str, object], environment: Mapping[str, str]) -> dict[str, object]:
    """The settings, and what they leave out from the environment. An empty value counts as none."""
    given = {name: value for name, value in settings.items() if name not in ENVIRONMENT or _said(value)}
    found = {
        name: environment[variable] for name, variable in ENVIRONMENT.items() if environment.get(variable)
    }
    return {**found, **given}


def engine_of(settings: WebSettings) -> Engine | None:
    """Who searches: who is named, else the first that has what it needs."""
    engines = cast("tuple[Engine, ...]", get_args(Engine))
    return settings.search or next((one for one in engines if not _missing(settings, one)), None)


def unusable(settings: WebSettings) -> dict[str, str]:
    """The tools (by verb) that can't work with these settings: why, and what to set."""
    engine = engine_of(settings)
    found: dict[str, str] = {}
    if engine is None:
        found["search"] = (
            "no search engine is set; set SERPER_API_KEY, or GOOGLE_API_KEY and GOOGLE_CX, or GEMINI_API_KEY,"
            " or SEARXNG_URL"
        )
    elif lacking := _missing(settings, engine):
        found["search"] = f"{engine} needs what is not set: {_wanted(lacking)}"
    if _missing(settings, "serper"):
        wanted = _wanted(NEEDS["serper"])
        found["reverse_image_search"] = f"Serper does it, and its key is not set: {wanted}"
        if engine != "searxng" or settings.searxng_url is None:
            found["image_search"] = f"Serper or SearXNG does it, and neither is set: {wanted}"
    if reason := not_installed():
        found["visit"] = found["read"] = reason
    if settings.visit_method == "jina" and settings.jina_api_key is None:
        line = f"Jina Reader's key is not set: {_wanted(['jina_api_key'])}; or set visit_method=reader"
        found["visit"] = found["read"] = line
    return found


def key_of(secret: SecretStr | None, setting: str) -> str:
    """A key that is there.

    :raises ToolFailure: `unavailable`, saying what to set.
    """
    if secret is None:
        raise ToolFailure(ErrorKind.UNAVAILABLE, f"web: a key is not set: {_wanted([setting])}.")
    return secret.get_secret_value()


def _missing(settings: WebSettings, engine: Engine) -> list[str]:
    return [
        name
        for name in NEEDS[engine]
        if getattr(settings, name) is None and not (name == "gemini_api_key" and settings.google_api_key)
    ]


def _wanted(names: tuple[str, ...] | list[str]) -> str:
    return "set " + " and ".join(f"{ENVIRONMENT[name]} (or the setting {name})" for name in names)


def _said(value: object) -> bool:
    return value not in (None, "") and not (isinstance(value, str) and not value.strip())
