"""Swarm API: episodes for clients, and the trainer's side, over HTTP. See docs/swarm.md."""

import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import anyio
import msgspec
from aiohttp import web
from msgspec import structs

from agentflow._decoding import DECODE_ERRORS, decode_reason
from agentflow.actors import computed
from agentflow.errors import RunStopped
from agentflow.gateway._episodes import ClientIdentity, ClientRole, EpisodeRegistry, digest_of
from agentflow.gateway._server import LARGE_BYTES, body_refused
from agentflow.gateway._settings import GatewaySettings, own_host
from agentflow.gateway._types import (
    CLIENT_HEADER,
    MAX_WAIT,
    AliveAnswer,
    AttemptRequest,
    BeginRequest,
    EndRequest,
    ErrorAnswer,
    ErrorDetail,
    GatewayError,
    HoldRequest,
    OffersRequest,
    RewardRequest,
    ScoreRequest,
    UseRequest,
    VersionRequest,
    WithdrawRequest,
)
from agentflow.http_server import BodyRefusedError, RequestBodies, identify
from agentflow.telemetry import get_logger
from runtimes import JsonLimits

T = TypeVar("T")
Handler = Callable[[web.Request, ClientIdentity], Awaitable[web.StreamResponse]]

MSGPACK = "application/msgpack"
_WORKER_BYTES = 1 << 20
_OWNER_BYTES = 32 << 20
_WORKER_VALUES = 50_000
_OWNER_VALUES = 1_000_000
_log = get_logger(__name__)


def add_swarm_routes(app: web.Application, registry: EpisodeRegistry, settings: GatewaySettings) -> None:
    """Add the swarm API to the application of a gateway. See docs/swarm.md."""
    _SwarmRoutes(registry, settings).add_to(app)


class _SwarmRoutes:
    def __init__(self, registry: EpisodeRegistry, settings: GatewaySettings) -> None:
        self._registry = registry
        self._slots = registry.slots
        roles = {
            ClientRole.VIEWER: settings.viewer_token,
            ClientRole.WORKER: settings.worker_token,
            ClientRole.OWNER: settings.token,
        }
        tokens = {role: token.get_secret_value() for role, token in roles.items()}
        self._token_digests = {role: digest_of(token) for role, token in tokens.items() if token}
        """Digest of the token of each role."""
        self._any_host = own_host(settings.host) != settings.host and not settings.public_url
        owner_bytes = max(_OWNER_BYTES, settings.body_bytes)
        self._owner_bodies = RequestBodies(JsonLimits(max_bytes=owner_bytes, max_values=_OWNER_VALUES))
        self._worker_bodies = RequestBodies(JsonLimits(max_bytes=_WORKER_BYTES, max_values=_WORKER_VALUES))

    def add_to(self, app: web.Application) -> None:
        """Add all routes."""
        worker, owner, viewer = ClientRole.WORKER, ClientRole.OWNER, ClientRole.VIEWER
        for method, path, role, handler in (
            ("POST", "/swarm/episodes", worker, self._begin),
            ("POST", "/swarm/episodes/{id}/end", worker, self._end),
            ("POST", "/swarm/episodes/{id}/abort", worker, self._abort),
            ("POST", "/swarm/episodes/{id}/alive", worker, self._alive),
            ("PUT", "/swarm/episodes/{id}/reward", worker, self._reward),
            ("GET", "/swarm/episodes/{id}/tokens", viewer, self._tokens),
            ("GET", "/swarm/status", viewer, self._status),
            ("POST", "/swarm/offers", owner, self._offer),
            ("GET", "/swarm/ended", owner, self._ended),
            ("GET", "/swarm/episodes/{id}/calls", owner, self._calls),
            ("POST", "/swarm/episodes/{id}/score", owner, self._score),
            ("POST", "/swarm/use", owner, self._use),
            ("POST", "/swarm/withdraw", owner, self._withdraw),
            ("PUT", "/swarm/version", owner, self._version),
            ("PUT", "/swarm/hold", owner, self._hold),
            ("POST", "/swarm/finish", owner, self._finish),
        ):
            app.router.add_route(method, path, self._guarded(role, handler))

    def _guarded(
        self, role: ClientRole, handler: Handler
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """Return a handler that checks the token and answers errors as JSON."""

        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                sender = self._role(request.headers.get("Authorization", ""))
                if sender < role:
                    raise GatewayError(
                        403, f"Authorization: this needs the role {role.name.lower()}", code="role"
                    )
                client = request.headers.get(CLIENT_HEADER, "")
                who = ClientIdentity(sender, self._registry.clients.check(client) if client else "")
                return await handler(request, who)
            except GatewayError as error:
                return _refusal(error)
            except RunStopped as stop:
                return _refusal(GatewayError(503, str(stop), code="unavailable", retry_after=1.0))

        return handle

    def _role(self, authorization: str) -> ClientRole:
        """Return the role of an `Authorization` header.

        :raises GatewayError: 401 without a valid token.
        """
        scheme, _, token = authorization.partition(" ")
        sent, role = digest_of(token.strip()), None
        for name, digest in self._token_digests.items():
            if hmac.compare_digest(sent, digest):
                role = name
        if role is None or scheme.lower() != "bearer":
            raise GatewayError(
                401,
                "Authorization: no valid token; send `Bearer TOKEN` with the token of a role",
                code="unknown_token",
            )
        return role

    async def _begin(self, request: web.Request, who: ClientIdentity) -> web.StreamResponse:
        body = await self._read(request, BeginRequest, who)
        begun = await self._registry.begin(
            who,
            task=body.task.task() if body.task is not None else None,
            mode=body.mode,
            agents=body.agents,
            wait=_wait(body.wait),
        )
        if begun is None:
            return web.Response(status=204)
        if self._any_host:
            begun = structs.replace(begun, base_url=f"http://{request.host}/v1")
        response = _answer(begun)
        try:
            await response.prepare(request)
            await response.write_eof()
        except BaseException:
            # The client left: without its keys nobody can play.
            with anyio.CancelScope(shield=True):
                client = ClientIdentity(who.role, begun.client)
                await self._registry.abort(
                    client, begun.episode, begun.attempt, "its client left", blame=False
                )
            raise
        return response

    async def _end(self, request: web.Request, who: ClientIdentity) -> web.Response:
        body = await self._read(request, EndRequest, who)
        return _answer(await self._registry.end(who, _id(request), body.attempt, body.outcome(), body.end_id))

    async def _abort(self, request: web.Request, who: ClientIdentity) -> web.Response:
        body = await self._read(request, AttemptRequest, who)
        await self._registry.abort(who, _id(request), body.attempt, body.why)
        return _answer({})

    async def _alive(self, request: web.Request, who: ClientIdentity) -> web.Response:
        body = await self._read(request, AttemptRequest, who)
        return _answer(AliveAnswer(expires=await self._registry.alive(who, _id(request), body.attempt)))

    async def _reward(self, request: web.Request, who: ClientIdentity) -> web.Response:
        body = await self._read(request, RewardRequest, who)
        await self._registry.put_reward(who, _id(request), body.attempt, body.reward)
        return _answer({})

    async def _tokens(self, request: web.Request, who: ClientIdentity) -> web.Response:
        attempt = _number(request, "attempt")
        calls = await self._registry.calls(who, _id(request), attempt)
        return _answer({"episode": _id(request), "attempt": attempt, "calls": calls})

    async def _status(self, request: web.Request, who: ClientIdentity) -> web.Response:
        return _answer(self._registry.status())

    async def _offer(self, request: web.Request, who: ClientIdentity) -> web.Response:
        body = await self._read(request, OffersRequest, who)
        await self._registry.finish(False)
        await self._slots.offer(body.offers, only=body.only)
        return _answer({})

    async def _ended(self, request: web.Request, who: ClientIdentity) -> web.Response:
        wait = float(_number(request, "wait", 0))
        return _answer(await self._slots.ended(_number(request, "after", 0), _wait(wait)))

    async def _calls(self, request: web.Request, who: ClientIdentity) -> web.Response:
        calls = await self._registry.calls(who, _id(request), _number(request, "attempt"))
        return web.Response(body=msgspec.msgpack.encode(calls), content_type=MSGPACK)

    async def _score(self, request: web.Request, who: ClientIdentity) -> web.Response:
        body = await self._read(request, ScoreRequest, who)
        await self._slots.score(_id(request), body.attempt, body.outcome)
        return _answer({})

    async def _use(self, request: web.Request, who: ClientIdentity) -> web.Response:
        body = await self._read(request, UseRequest, who)
        await self._slots.use(body.ids, body.step)
        return _answer({})

    async def _withdraw(self, request: web.Request, who: ClientIdentity) -> web.Response:
        body = await self._read(request, WithdrawRequest, who)
        await self._slots.withdraw(body.ids, body.why)
        return _answer({})

    async def _version(self, request: web.Request, who: ClientIdentity) -> web.Response:
        await self._registry.set_version((await self._read(request, VersionRequest, who)).version)
        return _answer({})

    async def _hold(self, request: web.Request, who: ClientIdentity) -> web.Response:
        if (await self._read(request, HoldRequest, who)).held:
            self._registry.pause()
        else:
            self._registry.resume()
        return _answer({})

    async def _finish(self, request: web.Request, who: ClientIdentity) -> web.Response:
        await self._registry.finish()
        return _answer({})

    async def _read(self, request: web.Request, kind: type[T], who: ClientIdentity) -> T:
        """Return the body of a request.

        :raises GatewayError: 400 if it isn't of that kind, 413 if it is too large.
        """
        bodies = self._owner_bodies if who.role is ClientRole.OWNER else self._worker_bodies
        identify(request)
        try:
            async with bodies.read_request(who.client or who.role.name, request) as body:
                decoder = msgspec.json.Decoder(kind)
                return await computed(len(body) > LARGE_BYTES, decoder.decode, body or b"{}")
        except BodyRefusedError as refused:
            raise body_refused(refused) from None
        except DECODE_ERRORS as error:
            raise GatewayError(400, f"body: {decode_reason(error)}", code="bad_body") from None


def _id(request: web.Request) -> str:
    return request.match_info["id"]


def _wait(seconds: float) -> float:
    return max(0.0, min(seconds, MAX_WAIT))


def _number(request: web.Request, name: str, default: int | None = None) -> int:
    """Return a number of the query.

    :raises GatewayError: 400 if it is missing or no number.
    """
    text = request.query.get(name, "" if default is None else str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise GatewayError(400, f"{name}: write a whole number, as in ?{name}=1", code="bad_query")
    return int(text)


def _answer(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(body), status=status, headers=headers, content_type="application/json"
    )


def _refusal(error: GatewayError) -> web.Response:
    headers = {} if error.retry_after is None else {"Retry-After": f"{max(1, round(error.retry_after))}"}
    if error.status == 413:
        # The rest of the body is not read.
        headers["Connection"] = "close"
    body = ErrorAnswer(error=ErrorDetail(message=error.message, code=error.code))
    return _answer(body, error.status, headers)
