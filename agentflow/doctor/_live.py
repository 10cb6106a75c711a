"""Real calls of the services that have a key: their answers are compared with what the clients read, and recorded."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from urllib.parse import quote, quote_plus

import anyio
import msgspec
from msgspec import Struct

from agentflow._decoding import DECODE_ERRORS
from agentflow._http_client import HttpAnswer, observe_answers, open_session, read_answer
from agentflow._secrets import MASK, mask_remembered, remember_secrets
from agentflow.doctor._checks import Diagnosis, DiagnosisState
from agentflow.errors import AgentFlowError, ConfigurationError, ToolFailure, error_line
from agentflow.models import (
    PROVIDERS,
    Message,
    ModelConnection,
    ModelSettings,
    Sampling,
    TextPart,
    cheapest_model,
    is_loopback,
)
from mcp_servers import ToolTable
from mcp_servers.core import did_you_mean
from mcp_servers.web import WebBackend

SEARCH_SERVICES: Final[Mapping[str, tuple[str, ...]]] = {
    "serper": ("SERPER_API_KEY",),
    "google": ("GOOGLE_API_KEY", "GOOGLE_CX"),
    "gemini-search": ("GEMINI_API_KEY",),
    "searxng": ("SEARXNG_URL",),
    "jina": ("JINA_API_KEY",),
}
"""Search services and the page reader, with the variables that each needs."""
QUERY: Final = "Wikipedia"
"""Query of each search service."""
PAGE: Final = "https://example.com/"
"""Page that the page reader reads."""
PROMPT: Final = "Reply with the word: ready"
"""Prompt of each model."""
_DEPLOYMENT: Final = "AZURE_OPENAI_DEPLOYMENT"
SECONDS: Final = 60.0
"""Time limit of one service."""


class RecordedAnswer(Struct, frozen=True, kw_only=True):
    """Answer of a service, without keys."""

    service: str
    """Name of the service."""
    at: str
    """Time of the answer, in UTC."""
    method: str
    """Method of the request."""
    url: str
    """Address of the request, without its query."""
    status: int
    """Status of the answer."""
    body: str
    """Body of the answer."""


async def examine_live(
    names: Iterable[str], environment: Mapping[str, str], *, web: Mapping[str, object] | None = None
) -> tuple[list[Diagnosis], list[RecordedAnswer]]:
    """Call each service that has a key once; without names, all of them. See docs/doctor.md.

    :param web: settings of the web backend, such as other addresses.
    :return: a diagnosis of each service that was called, and all answers.
    :raises ConfigurationError: if a name is unknown, a named service has no key, or none has.
    """
    calls = _calls(environment, web or {})
    chosen = list(names) or [name for name, (missing, _) in calls.items() if not missing]
    if not chosen:
        raise ConfigurationError(f"no service has a key; set one of {', '.join(_variables())}")
    for name in chosen:
        if name not in calls:
            raise ConfigurationError(f"{name!r} is unknown.{did_you_mean(name, calls)}")
        if missing := calls[name][0]:
            raise ConfigurationError(f"{name} has no key: set {' and '.join(missing)}")
    secrets = _secrets(environment)
    diagnoses: list[Diagnosis] = []
    answers: list[RecordedAnswer] = []
    for name in chosen:
        with observe_answers() as observed:
            problem = await _problem(calls[name][1])
        state, text = (DiagnosisState.MISSING, problem) if problem else (DiagnosisState.WORKS, "as expected")
        diagnoses.append(Diagnosis(area="live", name=name, state=state, text=_without(secrets, text)))
        answers += [_recorded(name, answer, secrets) for answer in observed]
    return diagnoses, answers


_Call = Callable[[], Awaitable[None]]


def _calls(
    environment: Mapping[str, str], web: Mapping[str, object]
) -> dict[str, tuple[tuple[str, ...], _Call]]:
    """Return the missing variables and the call of each service."""
    calls: dict[str, tuple[tuple[str, ...], _Call]] = {}
    for name, variables in SEARCH_SERVICES.items():
        call = _read_by_jina if name == "jina" else partial(_search, name.removesuffix("-search"))
        missing = tuple(variable for variable in variables if not environment.get(variable))
        calls[name] = missing, partial(call, environment, web)
    for name, provider in PROVIDERS.items():
        variables = () if provider.key(environment) else (provider.key_variable,)
        if variables and is_loopback(provider.address(environment)):
            # Servers on this machine need no key, but somebody must have started one.
            variables = () if environment.get(provider.url_variable) else (provider.url_variable,)
        if name == "azure":
            needed = (provider.key_variable, provider.url_variable, _DEPLOYMENT)
            variables = tuple(variable for variable in needed if not environment.get(variable))
        calls[name] = variables, partial(_ask, name, environment)
    return calls


async def _problem(call: _Call) -> str:
    """Call a service; return what is wrong with its answer."""
    try:
        with anyio.fail_after(SECONDS):
            await call()
    except TimeoutError:
        return f"no answer within {SECONDS:.0f} seconds"
    except Exception as error:  # boundary: any error of a client is its result
        return error_line(error)
    return ""


class _OtherForm(AgentFlowError):
    """An answer without what the client reads."""


@asynccontextmanager
async def _tools(
    environment: Mapping[str, str], web: Mapping[str, object], **settings: object
) -> AsyncGenerator[ToolTable]:
    options = {"cache": None, "retry_times": 1, **settings, **web}
    async with ToolTable([WebBackend(environment=lambda: environment)], settings={"web": options}) as table:
        yield table


async def _search(engine: str, environment: Mapping[str, str], web: Mapping[str, object]) -> None:
    async with _tools(environment, web, search=engine) as tools:
        search_result = await tools.call("web_search", {"query": QUERY, "count": 3})
    results = _data(search_result)["results"]
    hits = results[0]["hits"]
    if not hits or not all(hit["title"] and hit["url"].startswith("http") for hit in hits):
        raise _OtherForm("its answer has another form: no results with titles and addresses")


async def _read_by_jina(environment: Mapping[str, str], web: Mapping[str, object]) -> None:
    async with _tools(environment, web, visit_method="jina") as tools:
        visit_result = await tools.call("web_visit", {"urls": PAGE})
    page = _data(visit_result)["pages"][0]
    if not page["text"].strip() or not page["title"]:
        raise _OtherForm("its answer has another form: no title, or no text")


def _data(result: Any) -> dict[str, Any]:  # noqa: ANN401 - a result of any tool
    if result.error is not None:
        raise ToolFailure(result.error.kind, result.error.message)
    return result.data


class _ListedModel(Struct):
    id: str = ""
    name: str = ""


class _ListedModels(Struct):
    data: list[_ListedModel] = []
    models: list[_ListedModel] = []


async def _ask(name: str, environment: Mapping[str, str]) -> None:
    model = await _model_of(name, environment)
    sampling = Sampling(max_tokens=1000)
    settings = ModelSettings(name=f"{name}/{model}", max_attempts=1, call_seconds=SECONDS)
    async with ModelConnection(settings, environment=environment) as connection:
        answer = await connection.ask([Message("user", (TextPart(PROMPT),))], sampling=sampling)
    if not (answer.text or answer.reasoning).strip():
        raise _OtherForm(f"its answer has another form: {model} returned no text")
    if answer.usage_problem:
        raise _OtherForm(f"its answer has another form: {answer.usage_problem}")


async def _model_of(name: str, environment: Mapping[str, str]) -> str:
    """Return the cheapest model of a provider's own address, or the first one that another server lists."""
    import aiohttp

    provider = PROVIDERS[name]
    address = provider.address(environment)
    if name == "azure":
        return environment[_DEPLOYMENT]
    if address == provider.url and (model := cheapest_model(name)):
        return model
    headers = provider.make_api(environment).headers(provider.key(environment))
    timeout = aiohttp.ClientTimeout(total=SECONDS)
    try:
        async with (
            open_session(headers=headers, timeout=timeout, trust_env=True) as session,
            session.get(f"{address}{provider.models_path}") as answer,
        ):
            body, status = await read_answer(answer), answer.status
        if status != 200:
            raise _OtherForm(
                f"its list of models answers with {status}: {body[:200].decode(errors='replace')}"
            )
        listed = msgspec.json.decode(body, type=_ListedModels)
    except (aiohttp.ClientError, OSError, ValueError, *DECODE_ERRORS) as error:
        raise _OtherForm(f"{address} lists no models: {error_line(error)}") from None
    models = [model.id or model.name for model in (*listed.data, *listed.models)]
    if not any(models):
        raise _OtherForm("its list of models has another form: no names")
    return models[0].removeprefix("models/")


def _variables() -> list[str]:
    """Return the variables of keys."""
    searches = (name for variables in SEARCH_SERVICES.values() for name in variables if name.endswith("KEY"))
    return list(dict.fromkeys([*searches, *(provider.key_variable for provider in PROVIDERS.values())]))


def _secrets(environment: Mapping[str, str]) -> list[str]:
    """Return the keys of all services in the forms that texts can have them in, and remember them for other texts."""
    keys = {provider.key(environment) for provider in PROVIDERS.values()}
    keys |= {environment.get(name, "") for name in _variables()}
    remember_secrets(sorted(keys), "key")
    forms = {
        form
        for key in keys
        for form in (key, quote(key), quote(key, safe=""), quote_plus(key), json.dumps(key)[1:-1])
    }
    return sorted(forms - {""}, key=len, reverse=True)


def _without(secrets: Iterable[str], text: str) -> str:
    for secret in secrets:
        text = text.replace(secret, MASK)
    return " ".join(mask_remembered(text).split())


def _recorded(service: str, answer: HttpAnswer, secrets: list[str]) -> RecordedAnswer:
    body = answer.body.decode(errors="replace")
    for secret in secrets:
        body = body.replace(secret, MASK)
    return RecordedAnswer(
        service=service,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        method=answer.method,
        url=_without(secrets, answer.url.partition("?")[0]),
        status=answer.status,
        body=mask_remembered(body),
    )
