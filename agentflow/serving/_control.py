"""Control API of a running vLLM that was started for training."""

from typing import Self, TypeVar

import aiohttp
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agentflow._decoding import DECODE_ERRORS, decode_reason
from agentflow._http_client import AnswerRefused, open_session, read_answer
from agentflow._terminal import printable
from agentflow.errors import ConfigurationError
from agentflow.serving._weights import LoadReport, WeightsFailure

T = TypeVar("T")

_MAX_MESSAGE_CHARS = 300
_LOAD = "agentflow_load"
"""Method of `_inside/_weight_loader.py`."""
_PLAIN = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}


class EngineRefused(WeightsFailure):
    """The engine answered, but refused the request."""


class EngineGone(WeightsFailure):
    """The engine does not answer: its process has died, or its address is wrong."""


class _Logprob(Struct):
    logprob: float


class _Drawn(Struct):
    token_logprobs: list[float]


class _Choice(Struct):
    logprobs: _Drawn
    token_ids: list[int]
    prompt_logprobs: list[dict[int, _Logprob] | None] | None = None


class _PromptDetails(Struct):
    cached_tokens: int | None = None


class _CompletionUsage(Struct):
    prompt_tokens_details: _PromptDetails | None = None


class _Completion(Struct):
    choices: list[_Choice]
    usage: _CompletionUsage


class Drawn(Struct, frozen=True, kw_only=True):
    """Tokens that the engine sampled, each with its log-probability at temperature 1."""

    tokens: tuple[int, ...]
    """Tokens."""
    logprobs: tuple[float, ...]
    """Log-probability of each."""
    cached: int | None
    """Number of tokens of the prompt that came from the prefix cache; `None`: the engine does not report it."""


class _Loaded(Struct):
    results: list[LoadReport]


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
    """Client of the control API of one vLLM, used inside `async with`. See docs/serving.md."""

    def __init__(self, url: str, key: str = "", *, seconds: float = 600.0) -> None:
        self._address = url.rstrip("/").removesuffix("/v1")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._timeout = aiohttp.ClientTimeout(total=seconds)
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        # Requests are rare: the server would have closed an idle connection by the next one.
        once = aiohttp.TCPConnector(force_close=True)
        self._session = open_session(connector=once, headers=self._headers, timeout=self._timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def pause(self, *, clear_cache: bool = True) -> None:
        """Pause all computation; requests wait. If the caches are cleared, their prompts are read again afterwards."""
        await self.post(f"/pause?mode=keep&clear_cache={str(clear_cache).lower()}")

    async def resume(self) -> None:
        """Resume computation."""
        await self.post("/resume")

    async def is_paused(self) -> bool:
        """Return true if the engine is paused."""
        return (await self._get("/is_paused", _Paused)).is_paused

    async def reload(self, folder: str) -> None:
        """Load the weights of a folder, or of a name on the hub, without clearing the caches."""
        await self.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": folder}})

    async def load(self, folder: str, before: str = "") -> LoadReport | None:
        """Load the weights of a folder as `reload` does, and compare each tensor with what the engine has then.

        :param before: folder of the weights that it had.
        :return: `None` if the engine was started without our extension, and only loaded them.
        """
        call = {"method": _LOAD, "kwargs": {"folder": folder, "before": before}}
        try:
            answer = await self.post("/collective_rpc", call)
        except EngineRefused as refused:
            if f"no attribute '{_LOAD}'" not in str(refused):
                raise
            await self.reload(folder)
            return None
        reports = self._decoded("/collective_rpc", answer, _Loaded).results
        # One of each worker: a tensor is stale if it is so in one of them.
        return replace(
            reports[0],
            verified=min(report.verified for report in reports),
            stale=tuple(sorted({name for report in reports for name in report.stale})),
        )

    async def version(self) -> str:
        """Return the version of the weights; `default` for those that the engine started with."""
        return (await self._get("/weight_info", _WeightInfo)).weight_version

    async def set_version(self, version: str) -> None:
        """Set the version of the weights."""
        await self.post("/update_weight_version", {"new_version": version})

    async def model(self) -> tuple[str, str]:
        """Return the name of the model in requests, and the place it was loaded from at the start."""
        models = (await self._get("/v1/models", _Models)).data
        return models[0].id, models[0].root

    async def post(self, path: str, body: object | None = None) -> bytes:
        """Send any other control request, such as `/update_weights`.

        :raises EngineRefused: if the engine refuses.
        :raises EngineGone: if it does not answer.
        """
        return await self._ask("POST", path, body)

    async def draw(
        self, model: str, tokens: tuple[int, ...], count: int, *, salt: str = "", greedy: bool = False
    ) -> Drawn:
        """Sample tokens after these; the prefix cache may be used.

        :param salt: name of a part of the cache that only calls with the same salt share.
        """
        more: dict[str, object] = {"cache_salt": salt} if salt else {}
        if greedy:
            more["temperature"] = 0.0
        completion = await self._complete(model, tokens, max_tokens=count, ignore_eos=True, **more)
        choice, details = completion.choices[0], completion.usage.prompt_tokens_details
        return Drawn(
            tokens=tuple(choice.token_ids),
            logprobs=tuple(choice.logprobs.token_logprobs),
            cached=None if details is None else details.cached_tokens or 0,
        )

    async def score(self, model: str, tokens: tuple[int, ...]) -> list[float]:
        """Return the log-probability of each token but the first, without the prefix cache."""
        completion = await self._complete(model, tokens, prompt_logprobs=0)
        logprobs = completion.choices[0].prompt_logprobs or []
        return [
            candidates[token].logprob
            for token, candidates in zip(tokens[1:], logprobs[1:], strict=True)
            if candidates is not None
        ]

    async def _complete(self, model: str, tokens: tuple[int, ...], **more: object) -> _Completion:
        body = {
            "model": model,
            "prompt": tokens,
            "max_tokens": 1,
            "logprobs": 0,
            "return_token_ids": True,
            **_PLAIN,
            **more,
        }
        return self._decoded("/v1/completions", await self.post("/v1/completions", body), _Completion)

    async def _get(self, path: str, kind: type[T]) -> T:
        return self._decoded(path, await self._ask("GET", path, None), kind)

    def _decoded(self, path: str, content: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(content, type=kind)
        except DECODE_ERRORS as error:
            raise EngineRefused(f"{self._address} {path}: its answer: {decode_reason(error)}") from None

    async def _ask(self, method: str, path: str, body: object | None) -> bytes:
        try:
            async with self._session.request(method, self._address + path, json=body) as answer:
                content = await read_answer(answer)
                status = answer.status
        except TimeoutError as error:
            raise EngineRefused(
                f"{self._address} did not finish {path} in {self._timeout.total:g} s"
            ) from error
        except AnswerRefused as refused:
            raise EngineRefused(f"{self._address} {path}: {refused}") from None
        except (aiohttp.ClientError, OSError) as error:
            raise EngineGone(
                f"{self._address} does not answer {path}: {error or type(error).__name__}"
            ) from error
        if status == 404:
            raise ConfigurationError(
                f"{self._address} has no {path}: its weights can't be changed while it runs; "
                "start it with trains=true (VLLM_SERVER_DEV_MODE=1)"
            )
        if status in (401, 403):
            raise ConfigurationError(f"{self._address} refuses the key; use the one that it was started with")
        if status >= 300:
            raise EngineRefused(f"{self._address} refuses {path}: {_message_of(content)}")
        return content


class _ServerRefusalError(Struct):
    message: str


class _ServerRefusal(Struct):
    error: _ServerRefusalError


def _message_of(content: bytes) -> str:
    """Return the message of an OpenAI-style error, or the whole answer, as one line."""
    try:
        message = msgspec.json.decode(content, type=_ServerRefusal).error.message
    except DECODE_ERRORS:
        message = content.decode(errors="replace")
    return printable(" ".join(message.split())[:_MAX_MESSAGE_CHARS])
