"""Transports to an endpoint: a pool of HTTP connections, or LiteLLM's library in this process."""

import io
import os
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol, Self

import anyio
import msgspec

from agentflow.errors import ConfigurationError, ModelFailureKind
from agentflow.extras import missing_extra
from agentflow.models._apis import EncodedRequest
from agentflow.models._providers import is_loopback
from agentflow.models._request_error import RequestError, error_of_response, timed_out

if TYPE_CHECKING:
    import aiohttp
    from openai import APIError
    from yarl import URL

IDLE_SECONDS = 4.0
"""Lifetime of an idle connection. It is shorter than the five seconds of Uvicorn and vLLM: a request on a connection that
the server just closed fails."""
_LARGE = 1024 * 1024


class HttpTransport:
    """Pool of connections to one endpoint."""

    def __init__(
        self, url: str, headers: Mapping[str, str], most: int, *, wall: Callable[[], float] = time.time
    ) -> None:
        """Describe the pool; it is opened by `async with`.

        :param headers: headers of every request.
        :param most: maximum number of concurrent requests.
        :param wall: time of day, for endpoints that send a date in `Retry-After`.
        """
        self._url = url
        self._headers = headers
        self._most = most
        self._wall = wall
        self._session: aiohttp.ClientSession | None = None
        self._targets: dict[str, URL] = {}

    async def __aenter__(self) -> Self:
        import aiohttp
        from yarl import URL

        headers = {"Content-Type": "application/json", "User-Agent": "agentflow", **self._headers}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._most + 1, keepalive_timeout=IDLE_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=headers,
            proxy=_proxy_for(URL(self._url)),
            timeout=aiohttp.ClientTimeout(total=None),
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def post(self, request: EncodedRequest, seconds: float) -> bytes:
        """Send one request and return the body of the answer.

        :raises RequestError: if there is no answer, or its status is not 200.
        """
        if self._session is None:
            raise RuntimeError("a model must be used inside `async with`")
        import aiohttp
        from yarl import URL

        # aiohttp warns about large bodies that are not files.
        data = request.body if len(request.body) < _LARGE else io.BytesIO(request.body)
        timeout = aiohttp.ClientTimeout(total=seconds)
        target = self._targets.get(request.path)
        if target is None:
            whole = request.path if "://" in request.path else self._url + request.path
            target = self._targets[request.path] = URL(whole)
        try:
            async with self._session.post(
                target, data=data, headers=request.headers, timeout=timeout, allow_redirects=False
            ) as response:
                if request.on_line is not None and response.status == 200:
                    async for line in response.content:
                        request.on_line(line)
                    return b""
                answer = await response.read()
        except TimeoutError:
            raise timed_out() from None
        except (aiohttp.ClientError, OSError) as error:
            # The library's messages contain addresses and ports, which differ from run to run.
            message = f"no answer: {_name_of(error)}"
            unreachable = isinstance(error, aiohttp.ClientConnectorError)
            raise RequestError(
                ModelFailureKind.UNAVAILABLE, message, retry=True, unreachable=unreachable
            ) from error
        if response.status != 200:
            raise error_of_response(response.status, response.headers, answer, self._wall())
        return answer


def _proxy_for(target: "URL") -> str | None:
    """Return the proxy for a host from the environment; looked up once, where aiohttp would do it for each request."""
    host = target.host or ""
    if is_loopback(str(target)) or urllib.request.proxy_bypass(host):
        return None
    return urllib.request.getproxies().get(target.scheme)


def _name_of(error: BaseException) -> str:
    """Describe an error: by the operating system's message if there is one, else by its class."""
    import aiohttp

    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the connection was closed"
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, OSError) and cause.errno is not None and cause.errno > 0:
        return os.strerror(cause.errno)
    return "no connection" if isinstance(error, aiohttp.ClientConnectorError) else type(error).__name__


class _Answer(Protocol):
    def model_dump_json(self, *, warnings: bool) -> str: ...


class _Library(Protocol):
    suppress_debug_info: bool

    async def acompletion(self, **params: Any) -> _Answer: ...  # noqa: ANN401 - whatever a request says


def need_litellm() -> None:
    """Check that LiteLLM is installed.

    :raises ConfigurationError: if it is not.
    """
    if find_spec("litellm") is None:
        raise ConfigurationError(missing_extra("model litellm/…", "litellm"))


class LiteLlmTransport:
    """Transport that sends requests of OpenAI's API through LiteLLM to any provider it knows."""

    def __init__(self, key: str) -> None:
        """Describe the transport; the library is loaded by `async with`.

        :param key: key of the provider; if empty, the library takes it from the environment.
        """
        self._key = key
        self._library: _Library | None = None

    async def __aenter__(self) -> Self:
        self._library = await anyio.to_thread.run_sync(_load)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._library = None

    async def post(self, request: EncodedRequest, seconds: float) -> bytes:
        """Send one request and return the body of the answer; LiteLLM derives the address from the model's name.

        :raises RequestError: if there is no answer, or an error.
        """
        if self._library is None:
            raise RuntimeError("a model must be used inside `async with`")
        from openai import APIConnectionError, APIError, APITimeoutError

        params: dict[str, Any] = {"num_retries": 0, "max_retries": 0, "timeout": seconds}
        params |= {"api_key": self._key} if self._key else {}
        try:
            answer = await self._library.acompletion(**params, **msgspec.json.decode(request.body))
        except APITimeoutError:
            raise timed_out() from None
        except APIConnectionError as error:
            raise RequestError(ModelFailureKind.UNAVAILABLE, "no answer", retry=True) from error
        except APIError as error:
            raise _request_error(error) from None
        return answer.model_dump_json(warnings=False).encode()


def _load() -> _Library:
    if "litellm" not in sys.modules:
        # Without this, it fetches a list of prices from the network.
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    module: Any = import_module("litellm")
    library: _Library = module
    # It prints debugging advice.
    library.suppress_debug_info = True
    return library


def _request_error(error: "APIError") -> RequestError:
    status: int = getattr(error, "status_code", None) or 500
    response: object = getattr(error, "response", None)
    headers: Mapping[str, str] = getattr(response, "headers", None) or {}
    body = msgspec.json.encode({"error": {"message": error.message, "code": error.code}})
    return error_of_response(status, headers, body, 0.0)
