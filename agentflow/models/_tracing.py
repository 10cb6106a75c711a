"""Model calls as operations of a trace: attributes from the settings and the call, content as messages if it is enabled."""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from agentflow.models._protocol import (
    Call,
    Completion,
    ImagePart,
    Message,
    Part,
    Sampling,
    TextPart,
    ToolCall,
    ToolReply,
)
from agentflow.models._providers import PROVIDERS, full_name
from agentflow.models._settings import ModelSettings
from agentflow.telemetry import Operation, model_operation
from agentflow.telemetry import conventions as names

_CONVENTIONAL: Final = {
    "azure": "azure.ai.openai",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "moonshot": "moonshot_ai",
    "xai": "x_ai",
}
"""Names of providers in the conventions, where they differ from ours."""
_NONE: Final = Sampling()
_PORTS: Final = {"http": 80, "https": 443}


class ModelTrace:
    """Operations of the calls of one model."""

    def __init__(self, model: str, settings: ModelSettings | None = None, url: str = "") -> None:
        """:param model: name at the endpoint.
        :param settings: its settings; `None`: it computes in this process.
        :param url: address of the endpoint.
        """
        self._model = model
        self._provider = "agentflow" if settings is None else provider_of(settings)
        self._in_process = settings is None
        self._server = _server(url)

    def begin(self, call: Call[Any], sampling: Sampling | None = None) -> Operation:
        """Return the operation of a call.

        :param sampling: sampling parameters that are sent.
        """
        sent = _NONE if sampling is None else sampling
        structured = call.reply is not str
        return model_operation(
            self._model,
            self._provider,
            {
                **self._server,
                names.ROLE: call.role,
                names.OUTPUT_TYPE: "json" if structured else "text",
                names.REQUEST_TEMPERATURE: sent.temperature,
                names.REQUEST_TOP_P: sent.top_p,
                names.REQUEST_MAX_TOKENS: sent.max_tokens,
                names.REQUEST_SEED: sent.seed,
                names.REQUEST_STOP_SEQUENCES: sent.stop or None,
            },
            in_process=self._in_process,
        )

    @staticmethod
    def end(operation: Operation, call: Call[Any], completion: Completion[Any]) -> None:
        """Add the answer to the operation of a call."""
        operation.set(names.RESPONSE_MODEL, completion.model)
        operation.set(names.RESPONSE_FINISH_REASONS, (completion.finish,))
        operation.set(names.USAGE_INPUT_TOKENS, completion.usage.prompt_tokens)
        operation.set(names.USAGE_OUTPUT_TOKENS, completion.usage.completion_tokens)
        operation.content(names.INPUT_MESSAGES, lambda: [_message(message) for message in call.messages])
        operation.content(names.OUTPUT_MESSAGES, lambda: [_answer(completion)])


def provider_of(settings: ModelSettings) -> str:
    """Return the provider of a model as the conventions name it; an unknown endpoint by its API."""
    if settings.base_url or settings.api != "auto":
        named = "openai" if settings.api == "auto" else settings.api
    else:
        prefix, slash, _ = full_name(settings).partition("/")
        named = prefix if slash and prefix in {*PROVIDERS, "litellm"} else "openai"
    return _CONVENTIONAL.get(named, named)


def _server(url: str) -> dict[str, str | int]:
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return {}
    if not parts.hostname or port is None:
        return {}
    return {names.SERVER_ADDRESS: parts.hostname, names.SERVER_PORT: port}


def _message(message: Message) -> Mapping[str, object]:
    """Return a message by the schema of the conventions. Replies of tools are messages of the role `tool`."""
    role = "tool" if any(isinstance(part, ToolReply) for part in message.parts) else message.role
    return {"role": role, "parts": [_part(part) for part in message.parts]}


def _answer(completion: Completion[Any]) -> Mapping[str, object]:
    parts: list[object] = []
    if completion.reasoning:
        parts.append({"type": "reasoning", "content": completion.reasoning})
    if completion.text:
        parts.append({"type": "text", "content": completion.text})
    parts += map(_part, completion.calls)
    return {"role": "assistant", "parts": parts, "finish_reason": completion.finish}


def _part(part: Part) -> Mapping[str, object]:
    match part:
        case TextPart():
            return {"type": "text", "content": part.text}
        case ImagePart():
            # Its bytes stay in the journal: viewers of traces do not show them, and they fill their databases.
            return {"type": "image", "mime_type": part.mime, "bytes": len(part.data)}
        case ToolCall():
            return {"type": "tool_call", "id": part.id, "name": part.name, "arguments": part.arguments}
        case ToolReply():
            response = [_part(reply_part) for reply_part in part.parts]
            return {"type": "tool_call_response", "id": part.call, "response": response}
