"""Asking services that answer in JSON."""

import urllib.request
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import msgspec

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.web._outside import Outside
from mcp_servers.web._retrying import PASSING, Passing, kind_of, retried, wait_of

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from aiohttp import ClientResponse, ClientSession

__all__ = ["Api"]

S = TypeVar("S")

LARGEST = 8 * 1024 * 1024
SHOWN = 200


class Api:
    """The services' side of the network: their addresses are the server's own settings. An async context manager."""

    def __init__(self, outside: Outside, *, timeout: float, attempts: int, secrets: Iterable[str]) -> None:
        """Describe it; nothing is opened yet.

        :param secrets: what must never be shown, even where a service repeats it.
        """
        self._outside = outside
        self._timeout = timeout
        self._attempts = attempts
        self._secrets = [secret for secret in secrets if secret]
        self._session: ClientSession | None = None

    async def __aenter__(self) -> "Self":
        import aiohttp

        self._session = aiohttp.ClientSession(
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=self._timeout),
            headers={"Accept": "application/json"},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def ask(
        self,
        service: str,
        url: str,
        shape: type[S],
        *,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
        body: object = None,
    ) -> S:
        """What the service answers, read as `shape`; with a body by POST.

        :param service: what it is called in messages.
        :raises ToolFailure: if it gives no such answer after every attempt.
        """

        async def once() -> S:
            return await self._once(service, url, shape, headers or {}, params or {}, body)

        return await retried(once, self._attempts, self._outside)

    async def _once(
        self,
        service: str,
        url: str,
        shape: type[S],
        headers: Mapping[str, str],
        params: Mapping[str, str],
        body: object,
    ) -> S:
        import aiohttp

        assert self._session is not None, "it is entered before it is used"
        method = "GET" if body is None else "POST"
        data = None if body is None else msgspec.json.encode(body)
        typed = {} if body is None else {"Content-Type": "application/json"}
        try:
            async with self._session.request(
                method,
                url,
                params=params,
                data=data,
                headers={**headers, **typed},
                allow_redirects=False,
                proxy=_proxy_for(url),
            ) as response:
                answer = await _read(response, service)
        except TimeoutError:
            raise Passing(ToolFailure(ErrorKind.TIMEOUT, f"{service} gave no answer in time.")) from None
        except aiohttp.ClientError as error:
            name = type(error).__name__
            raise Passing(
                ToolFailure(ErrorKind.UNAVAILABLE, f"{service} can't be reached: {name}.")
            ) from None
        if response.status != 200:
            raise self._refusal(service, response, answer)
        try:
            return msgspec.json.decode(answer, type=shape)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            message = f"{service}: its answer can't be read: {self._shown(str(error))}."
            raise ToolFailure(ErrorKind.UNAVAILABLE, message) from None

    def _refusal(self, service: str, response: "ClientResponse", answer: bytes) -> Exception:
        status = response.status
        said = self._shown(answer.decode(errors="replace"))
        mend = "; check its key" if status in (401, 403) else ""
        failure = ToolFailure(kind_of(status), f"{service} answers with status {status}{mend}: {said}")
        if status not in PASSING:
            return failure
        return Passing(failure, wait_of(response.headers, self._outside.wall()))

    def _shown(self, text: str) -> str:
        """A beginning of it on one line, without secrets."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        line = " ".join(text.split())
        return line[:SHOWN] + (" …" if len(line) > SHOWN else "")


async def _read(response: "ClientResponse", service: str) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > LARGEST:
            raise ToolFailure(ErrorKind.OUTPUT_LIMIT, f"{service}: its answer is too long.")
    return b"".join(parts)


def _proxy_for(url: str) -> str | None:
    """The proxy that the usual variables name."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host in ("localhost", "127.0.0.1", "::1") or urllib.request.proxy_bypass(host):
        return None
    return urllib.request.getproxies().get(parts.scheme)
