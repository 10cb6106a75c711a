"""LiteLLM's library in this process, as a transport."""

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol, Self

import anyio
import msgspec

from agentflow.errors import ConfigurationError, ModelFailureKind
from agentflow.models._request_error import RequestError, error_of_response, timed_out
from agentflow.models._transport import HttpResponse

if TYPE_CHECKING:
    from openai import APIError


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
        raise ConfigurationError(
            "model litellm/…: LiteLLM is not installed; pip install 'agentflow[litellm]'"
        )


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

    async def post(
        self, path: str, body: bytes, seconds: float, headers: Mapping[str, str] | None = None
    ) -> HttpResponse:
        """Send one request; LiteLLM derives the address from the model's name.

        :raises RequestError: if there is no answer, or an error.
        """
        del path, headers
        if self._library is None:
            raise RuntimeError("a model must be used inside `async with`")
        from openai import APIConnectionError, APIError, APITimeoutError

        params: dict[str, Any] = {"num_retries": 0, "max_retries": 0, "timeout": seconds}
        params |= {"api_key": self._key} if self._key else {}
        try:
            answer = await self._library.acompletion(**params, **msgspec.json.decode(body))
        except APITimeoutError:
            raise timed_out() from None
        except APIConnectionError as error:
            raise RequestError(ModelFailureKind.UNAVAILABLE, "no answer", retry=True) from error
        except APIError as error:
            raise _request_error(error) from None
        return HttpResponse(200, {}, answer.model_dump_json(warnings=False).encode())


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
