"""Settings of the web backend, and the API keys it takes from the environment."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, SecretStr, field_validator, model_validator

from agentflow.errors import ErrorKind, ToolFailure
from agentflow.settings import Section
from mcp_servers.web._parsers import not_installed

SearchEngine: TypeAlias = Literal["serper", "google", "gemini", "searxng"]
"""Search services."""
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
"""Environment variables of settings."""
REQUIRED: Mapping[SearchEngine, tuple[str, ...]] = {
    "serper": ("serper_api_key",),
    "google": ("google_api_key", "google_cx"),
    "gemini": ("gemini_api_key",),
    "searxng": ("searxng_url",),
}
"""Settings that each search service requires."""


class CacheSettings(Section):
    """Settings of the cache of search results and pages."""

    folder: Path | None = None
    """Directory of the cache; by default in the user's cache directory."""
    bytes: int = Field(default=256 * MIB, ge=0)
    """Size limit; the oldest entries are dropped."""
    seconds: Seconds = 86_400.0
    """Lifetime of an entry."""


class ReadingSettings(Section):
    """Limits of the parser processes."""

    processes: int = Field(default=2, ge=1, le=64)
    """Most pages parsed at once."""
    seconds: Seconds = 20.0
    """Limit on wall-clock time and CPU time for one page."""
    memory_bytes: int = Field(default=1024 * MIB, ge=256 * MIB)
    """Memory limit for one page."""
    pdf_pages: int = Field(default=300, ge=1)
    """Most pages of a PDF to read."""


def _builtin_reader(method: object) -> object:
    """Accept `crawl4ai`, a name of the documented settings, for the built-in reader."""
    return "reader" if method == "crawl4ai" else method


class WebSettings(Section):
    """Settings of the web backend. A client cannot override them for its session."""

    search: SearchEngine | None = None
    """Search service: `serper`, `google`, `gemini` or `searxng`; by default the first one whose key or address is set."""
    serper_api_key: SecretStr | None = None
    """API key of Serper, for web and image search; by default the variable `SERPER_API_KEY`."""
    serper_url: str = "https://google.serper.dev"
    """Address of Serper."""
    google_api_key: SecretStr | None = None
    """API key of Google's Programmable Search and Gemini; by default the variable `GOOGLE_API_KEY`."""
    google_cx: str | None = None
    """Id of a Programmable Search engine; by default the variable `GOOGLE_CX`."""
    google_url: str = "https://customsearch.googleapis.com/customsearch/v1"
    """Address of Programmable Search."""
    gemini_api_key: SecretStr | None = None
    """API key of Gemini; by default the variable `GEMINI_API_KEY`, then `google_api_key`."""
    gemini_url: str = "https://generativelanguage.googleapis.com/v1beta"
    """Address of the Gemini API."""
    gemini_model: str = "gemini-2.5-flash"
    """Gemini model that uses Google's search tool."""
    searxng_url: str | None = None
    """Address of a SearXNG, or a service with its `/search?format=json`; by default the variable `SEARXNG_URL`."""
    visit_method: Annotated[Literal["jina", "reader"], BeforeValidator(_builtin_reader)] = "reader"
    """Reader of pages: `jina` (Jina Reader) or `reader`, the built-in one (also called `crawl4ai`)."""
    jina_api_key: SecretStr | None = None
    """API key of Jina Reader; by default the variable `JINA_API_KEY`."""
    jina_url: str = "https://r.jina.ai"
    """Address of Jina Reader."""
    content_limit: int = Field(default=50_000, ge=500)
    """Most characters of a page in one result."""
    enable_llm_summary: bool = False
    """Let a model extract the text relevant to a goal; otherwise the best matching passages are returned."""
    summary_model: str | None = None
    """Name of that model."""
    openai_api_key: SecretStr | None = None
    """API key of that model; by default the variable `OPENAI_API_KEY`."""
    openai_api_url: str = OPENAI
    """OpenAI-compatible endpoint of that model."""
    wikipedia_url: str = "https://{language}.wikipedia.org/w/api.php"
    """Address of a MediaWiki API; `{language}` is replaced by the requested language."""
    zim: Path | None = None
    """ZIM file to use instead of Wikipedia, without network access; needs the `zim` extra."""
    max_workers: int = Field(default=5, ge=1, le=100)
    """Most queries or pages of one call processed at once."""
    retry_times: int = Field(default=5, ge=1, le=10)
    """Most attempts of a request that fails temporarily."""
    timeout: Seconds = 30.0
    """Time limit of one request, in seconds."""
    max_bytes: int = Field(default=10 * MIB, ge=1024)
    """Largest response body to read, after decompression."""
    max_redirects: int = Field(default=5, ge=0, le=20)
    """Most redirects to follow; each address is checked like the first."""
    robots: bool = True
    """Obey the site's robots.txt."""
    user_agent: str = Field(default="agentflow-web/1.0", min_length=1)
    """User agent string of the reader."""
    host_interval: float = Field(default=0.5, ge=0)
    """Minimum interval between two requests of the reader to one host, in seconds."""
    allow_private: bool = False
    """Allow the reader to reach private networks and this machine; cloud metadata addresses stay blocked."""
    allowed_hosts: tuple[str, ...] = ()
    """Hosts that may have any address: `name`, `*.name` or an address, each optionally with `:port`."""
    reading: ReadingSettings = ReadingSettings()
    """Limits of the parser processes."""
    cache: CacheSettings | None = CacheSettings()
    """Cache of search results and pages; null disables it."""

    @model_validator(mode="after")
    def _has_a_model_to_ask(self) -> Self:
        if self.enable_llm_summary:
            if not self.summary_model:
                raise ValueError("enable_llm_summary requires a model: set summary_model")
            if self.openai_api_key is None and self.openai_api_url == OPENAI:
                raise ValueError("enable_llm_summary requires a key: set OPENAI_API_KEY or openai_api_key")
        return self

    @field_validator("serper_url", "google_url", "gemini_url", "searxng_url", "jina_url", "openai_api_url")
    @classmethod
    def _is_an_address(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("http://", "https://")):
            raise ValueError(f"{url!r} is not an address: it must start with https://")
        return url.rstrip("/") if url else url


def with_environment(settings: Mapping[str, object], environment: Mapping[str, str]) -> dict[str, object]:
    """Complete the settings from the environment. An empty value counts as unset."""
    explicit = {name: value for name, value in settings.items() if name not in ENVIRONMENT or _is_set(value)}
    inherited = {
        name: environment[variable] for name, variable in ENVIRONMENT.items() if environment.get(variable)
    }
    return {**inherited, **explicit}


def engine_of(settings: WebSettings) -> SearchEngine | None:
    """Return the configured search service, or the first one whose settings are complete."""
    return settings.search or next((engine for engine in REQUIRED if not _missing(settings, engine)), None)


def preferred_engine(settings: WebSettings, wanted: SearchEngine | None) -> tuple[SearchEngine | None, str]:
    """Return the search service to use, and a note if it is not the wanted one. Gemini and Serper search with Google."""
    usual = engine_of(settings)
    if wanted is None:
        return usual, ""
    same: tuple[SearchEngine, ...] = ("google", "gemini", "serper") if wanted == "google" else (wanted,)
    for engine in same:
        if not _missing(settings, engine):
            return engine, ""
    note = f"{wanted} is not configured ({_how_to_set(REQUIRED[wanted])}); searched with {usual}."
    return usual, "" if usual is None else note


def unusable_tools(settings: WebSettings) -> dict[str, str]:
    """Map the tools (by verb) that cannot work with these settings to the reason and the setting to add."""
    engine = engine_of(settings)
    reasons: dict[str, str] = {}
    if engine is None:
        reasons["search"] = (
            "no search engine is configured: set SERPER_API_KEY, or GOOGLE_API_KEY and GOOGLE_CX, or GEMINI_API_KEY,"
            " or SEARXNG_URL"
        )
    elif lacking := _missing(settings, engine):
        reasons["search"] = f"{engine} is not configured: {_how_to_set(lacking)}"
    if _missing(settings, "serper"):
        wanted = _how_to_set(REQUIRED["serper"])
        reasons["reverse_image_search"] = f"it needs Serper, whose key is not set: {wanted}"
        if engine != "searxng" or settings.searxng_url is None:
            reasons["image_search"] = f"it needs Serper or SearXNG, and neither is configured: {wanted}"
    if reason := not_installed():
        reasons["visit"] = reasons["read"] = reason
    if settings.visit_method == "jina" and settings.jina_api_key is None:
        line = f"Jina Reader's key is not set: {_how_to_set(['jina_api_key'])}; or set visit_method=reader"
        reasons["visit"] = reasons["read"] = line
    return reasons


def key_of(secret: SecretStr | None, setting: str) -> str:
    """Return the value of a key.

    :raises ToolFailure: `unavailable`, if it is not set.
    """
    if secret is None:
        raise ToolFailure(ErrorKind.UNAVAILABLE, f"web: a key is not set: {_how_to_set([setting])}.")
    return secret.get_secret_value()


def _missing(settings: WebSettings, engine: SearchEngine) -> list[str]:
    return [
        name
        for name in REQUIRED[engine]
        if getattr(settings, name) is None and not (name == "gemini_api_key" and settings.google_api_key)
    ]


def _how_to_set(names: tuple[str, ...] | list[str]) -> str:
    return "set " + " and ".join(f"{ENVIRONMENT[name]} (or the setting {name})" for name in names)


def _is_set(value: object) -> bool:
    return value not in (None, "") and not (isinstance(value, str) and not value.strip())
