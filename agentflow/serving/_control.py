"""What a running vLLM is told and asked beside its completions: it must have been started for training."""

from typing import Any, Self, TypeVar

import aiohttp
import msgspec
from msgspec import Struct

from agentflow.errors import ConfigurationError
from agentflow.serving._weights import WeightsFailure

__all__ = ["EngineControl", "EngineGone", "EngineRefused"]

T = TypeVar("T")

_LONGEST_WORDS = 300
_PLAIN = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}


class EngineRefused(WeightsFailure):
    """It answered, and did not do what it was asked."""


class EngineGone(WeightsFailure):
    """Nobody answers: its process has died, or its address is wrong."""


class _Logprob(Struct):
    logprob: float


class _Drawn(Struct):
    token_logprobs: list[float]


class _Choice(Struct):
    logprobs: _Drawn
    token_ids: list[int]
    prompt_logprobs: list[dict[int, _Logprob] | None] | None = None


class _Completion(Struct):
    choices: list[_Choice]


class _WeightInfo(Struct):
    weight_version: str


class _Paused(Struct):
    is_paused: bool


class _Model(Struct):
    id: str
    root: str


class _Models(Struct):
    data: list[_Model]


class EngineControl:
    """The control plane of one vLLM, used inside `async with`."""

    def __init__(self, url: str, key: str = "", *, seconds: float = 600.0) -> None:
        self._address = url.rstrip("/").removesuffix("/v1")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._timeout = aiohttp.ClientTimeout(total=seconds)
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        # It is asked seldom: a connection that was kept would have been closed at the other end by then.
        once = aiohttp.TCPConnector(force_close=True)
        self._session = aiohttp.ClientSession(connector=once, headers=self._headers, timeout=self._timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def pause(self, *, clear_cache: bool = True) -> None:
        """Nothing is computed from now on; requests wait. Without their caches they are read again afterwards."""
        await self._post(f"/pause?mode=keep&clear_cache={str(clear_cache).lower()}")

    async def resume(self) -> None:
        """Requests go on."""
        await self._post("/resume")

    async def is_paused(self) -> bool:
        """Whether requests wait."""
        return (await self._get("/is_paused", _Paused)).is_paused

    async def reload(self, folder: str) -> None:
        """Read the weights of a folder (or of a name on the hub) in place of its own; caches are not looked at."""
        await self._post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": folder}})

    async def version(self) -> str:
        """What it calls its weights; `default`: what it was started with."""
        return (await self._get("/weight_info", _WeightInfo)).weight_version

    async def set_version(self, version: str) -> None:
        """Call its weights this."""
        await self._post("/update_weight_version", {"new_version": version})

    async def model(self) -> tuple[str, str]:
        """What requests call its model, and where that was read from at its start."""
        models = (await self._get("/v1/models", _Models)).data
        return models[0].id, models[0].root

    async def post(self, path: str, body: object | None = None) -> bytes:
        """Ask for anything else of it, as `/update_weights`.

        :raises EngineRefused: if it says no.
        :raises EngineGone: if nobody answers.
        """
        return await self._post(path, body)

    async def draw(self, model: str, tokens: tuple[int, ...]) -> tuple[int, float]:
        """One token that goes on from these, and its log-probability; what it remembers of them may be used."""
        choice = await self._complete(model, tokens)
        return choice.token_ids[0], choice.logprobs.token_logprobs[0]

    async def score(self, model: str, tokens: tuple[int, ...]) -> list[float]:
        """The log-probability of each of these tokens but the first; nothing that it remembers is used."""
        told = (await self._complete(model, tokens, prompt_logprobs=0)).prompt_logprobs or []
        return [
            place[token].logprob
            for token, place in zip(tokens[1:], told[1:], strict=True)
            if place is not None
        ]

    async def _complete(self, model: str, tokens: tuple[int, ...], **more: object) -> _Choice:
        body = {
            "model": model,
            "prompt": tokens,
            "max_tokens": 1,
            "logprobs": 0,
            "return_token_ids": True,
            **_PLAIN,
            **more,
        }
        return msgspec.json.decode(await self._post("/v1/completions", body), type=_Completion).choices[0]

    async def _get(self, path: str, kind: type[T]) -> T:
        return msgspec.json.decode(await self._ask("GET", path, None), type=kind)

    async def _post(self, path: str, body: object | None = None) -> bytes:
        return await self._ask("POST", path, body)

    async def _ask(self, method: str, path: str, body: object | None) -> bytes:
        try:
            async with self._session.request(method, self._address + path, json=body) as answer:
                said = await answer.read()
                status = answer.status
        except TimeoutError as error:
            raise EngineRefused(
                f"{self._address} does not end {path} in {self._timeout.total:g} s"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineGone(
                f"{self._address} doesn't answer {path}: {error or type(error).__name__}"
            ) from error
        if status == 404:
            raise ConfigurationError(
                f"{self._address} has no {path}: its weights can't be changed while it runs; "
                "start it with trains=true (VLLM_SERVER_DEV_MODE=1)"
            )
        if status in (401, 403):
            raise ConfigurationError(
                f"{self._address} refuses the key; give the one that it was started with"
            )
        if status >= 400:
            raise EngineRefused(f"{self._address} refuses {path}: {_words(said)}")
        return said


def _words(said: bytes) -> str:
    try:
        told: Any = msgspec.json.decode(said)
        message = told["error"]["message"]
    except (msgspec.DecodeError, KeyError, TypeError):
        message = said.decode(errors="replace")
    return " ".join(str(message).split())[:_LONGEST_WORDS]
