"""Settings of the web backend, and the API keys it takes from the environment."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias, cast, get_args

from pydantic import BeforeValidator, Field, SecretStr, field_validator, model_validator

from agentflow.errors import ErrorKind, ToolFailure
from agentflow.settings import Section
from mcp_servers.web._parsers import not_installed

__all__ = [
    "CacheSettings",
    "ReadingSettings",
    "SearchEngine",
    "WebSettings",
    "engine_of",
    "key_of",
    "unusable_tools",
    "with_environment",
]

SearchEngine: TypeAlias = Literal["serper", "google", "gemini", "searxng"]
"""Who searches."""
MIB = 1024 * 1024
OPENAI = "https://api.openai.com/v1"
Seconds = Annotated[float, Field(gt=0)]
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
NEEDS: Mapping[SearchEngine, tuple[str, ...]] = {
    "serper": ("serper_api_key",),
    "google": ("google_api_key", "google_cx"),
    "gemini": ("gemini_api_key",),
    "searxng": ("searxng_url",),
}
"""What each way to search can't do without."""


class CacheSettings(Section):
    """What was found and read, kept on disk for a while."""

    folder: Path | None = None
    """Where; by default in the user's cache."""
    bytes: int = Field(default=256 * MIB, ge=0)
    """How much of it; the oldest makes room."""
    seconds: Seconds = 86_400.0
    """How long something stays good."""


class ReadingSettings(Section):
    """Limits of the processes in which pages are parsed."""

    processes: int = Field(default=2, ge=1, le=64)
    """Pages that are parsed at once."""
    seconds: Seconds = 20.0
    """Time for one page, by the clock and of the processor."""
    memory_bytes: int = Field(default=1024 * MIB, ge=256 * MIB)
    """Memory for one page."""
    pdf_pages: int = Field(default=300, ge=1)
    """How many pages of a PDF are read."""


def _own_word(method: object) -> object:
    """The other system's local reader is ours here, so that its settings go on working."""
    return "reader" if method == "crawl4ai" else method


class WebSettings(Section):
    """Settings of the web backend. They are the server's own: no client can set them for its session."""

    search: SearchEngine | None = None
    """`serper`, `google`, `gemini` or `searxng`; by default the first of them that has its key or address."""
    serper_api_key: SecretStr | None = None
    """The key of Serper, for web_search and the search for images; by default `SERPER_API_KEY` of the environment."""
    serper_url: str = "https://google.serper.dev"
    """Where Serper is."""
    google_api_key: SecretStr | None = None
    """The key of Google's Programmable Search and of Gemini; by default `GOOGLE_API_KEY` of the environment."""
    google_cx: str | None = None
    """The id of a Programmable Search engine; by default `GOOGLE_CX` of the environment."""
    google_url: str = "https://customsearch.googleapis.com/customsearch/v1"
    """Where Programmable Search is."""
    gemini_api_key: SecretStr | None = None
    """The key of Gemini; by default `GEMINI_API_KEY` of the environment, then `google_api_key`."""
    gemini_url: str = "https://generativelanguage.googleapis.com/v1beta"
    """Where Gemini is."""
    gemini_model: str = "gemini-2.5-flash"
    """The model that searches by Google's search tool."""
    searxng_url: str | None = None
    """A SearXNG, or whatever answers `/search?format=json` as it does; by default `SEARXNG_URL` of the environment."""
    visit_method: Annotated[Literal["jina", "reader"], BeforeValidator(_own_word)] = "reader"
    """Who fetches pages: Jina Reader, or this server's own reader (`crawl4ai` means that one too)."""
    jina_api_key: SecretStr | None = None
    """The key of Jina Reader; by default `JINA_API_KEY` of the environment."""
    jina_url: str = "https://r.jina.ai"
    """Where Jina Reader is."""
    content_limit: int = Field(default=50_000, ge=500)
    """Characters of one page that a result shows."""
    enable_llm_summary: bool = False
    """Let a model extract what a goal asks for; without it the passages that fit the goal best are taken."""
    summary_model: str | None = None
    """That model's name."""
    openai_api_key: SecretStr | None = None
    """The key of its endpoint; by default `OPENAI_API_KEY` of the environment."""
    openai_api_url: str = OPENAI
    """Its OpenAI-compatible endpoint."""
    wikipedia_url: str = "https://{language}.wikipedia.org/w/api.php"
    """A MediaWiki API; `{language}` is replaced by the language asked for."""
    zim: Path | None = None
    """A ZIM file to look things up in instead, without a network; needs the `zim` extra."""
    max_workers: int = Field(default=5, ge=1, le=100)
    """Queries or pages of one call that are worked on at once."""
    retry_times: int = Field(default=5, ge=1, le=10)
    """How often a request is tried that fails for the moment."""
    timeout: Seconds = 30.0
    """Seconds for one request."""
    max_bytes: int = Field(default=10 * MIB, ge=1024)
    """The largest body that is read, after decompression."""
    max_redirects: int = Field(default=5, ge=0, le=20)
    """How many redirects are followed; each leads to an address that is checked like the first."""
    robots: bool = True
    """Leave alone what a site's robots.txt disallows."""
    user_agent: str = Field(default="agentflow-web/1.0", min_length=1)
    """How the reader calls itself."""
    host_interval: float = Field(default=0.5, ge=0)
    """Seconds between two requests of the reader to one host."""
    allow_private: bool = False
    """Let the reader reach private networks and this machine; the addresses of cloud metadata still not."""
    allowed_hosts: tuple[str, ...] = ()
    """Hosts that the reader may reach wherever they are: `name`, `*.name`, an address, each with `:port` or without."""
    reading: ReadingSettings = ReadingSettings()
    """Limits of the processes in which pages are parsed."""
    cache: CacheSettings | None = CacheSettings()
    """What was found and read is kept for a while; null: never."""

    @model_validator(mode="after")
    def _has_a_model_to_ask(self) -> Self:
        if self.enable_llm_summary:
            if not self.summary_model:
                raise ValueError("enable_llm_summary needs a model: set summary_model")
            if self.openai_api_key is None and self.openai_api_url == OPENAI:
                raise ValueError("enable_llm_summary needs a key: set OPENAI_API_KEY or openai_api_key")
        return self

    @field_validator("serper_url", "google_url", "gemini_url", "searxng_url", "jina_url", "openai_api_url")
    @classmethod
    def _is_an_address(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("http://", "https://")):
            raise ValueError(f"{url!r} is no address; it begins with https://")
        return url.rstrip("/") if url else url


def with_environment(settings: Mapping[str, object], environment: Mapping[str, str]) -> dict[str, object]:
    """The settings, and what they leave out from the environment. An empty value counts as none."""
    given = {name: value for name, value in settings.items() if name not in ENVIRONMENT or _said(value)}
    found = {
        name: environment[variable] for name, variable in ENVIRONMENT.items() if environment.get(variable)
    }
    return {**found, **given}


def engine_of(settings: WebSettings) -> SearchEngine | None:
    """Who searches: who is named, else the first that has what it needs."""
    engines = cast("tuple[SearchEngine, ...]", get_args(SearchEngine))
    return settings.search or next((one for one in engines if not _missing(settings, one)), None)


def unusable_tools(settings: WebSettings) -> dict[str, str]:
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


def _missing(settings: WebSettings, engine: SearchEngine) -> list[str]:
    return [
        name
        for name in NEEDS[engine]
        if getattr(settings, name) is None and not (name == "gemini_api_key" and settings.google_api_key)
    ]


def _wanted(names: tuple[str, ...] | list[str]) -> str:
    return "set " + " and ".join(f"{ENVIRONMENT[name]} (or the setting {name})" for name in names)


def _said(value: object) -> bool:
    return value not in (None, "") and not (isinstance(value, str) and not value.strip())
