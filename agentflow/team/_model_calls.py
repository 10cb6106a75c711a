"""Calls of language models by the roles, and the use of models inside tools."""

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import msgspec

from agentflow.errors import RunStopped
from agentflow.models import Call, Message, Model, ask_model
from agentflow.team._schemas import answer_schema
from agentflow.trace import Blob, BlobStore, Reply, Request, Usage

A = TypeVar("A", bound=msgspec.Struct)


async def answer_request(
    model: Model,
    request: Request[A],
    answer: type[A],
    messages: tuple[Message, ...],
    *,
    role: str,
    schema: dict[str, Any] | None = None,
) -> Reply[A]:
    """Have a model answer a request to a role.

    :param answer: the type of the answer.
    :param messages: the request as messages.
    :param role: the role, by which usage is accounted.
    :param schema: JSON schema of the answer, if not that of its type.
    :raises RunStopped: if the model cannot be used any more.
    """
    schema = answer_schema(answer) if schema is None else schema
    return await ask_model(
        model, Call(role=role, messages=messages, reply=answer, schema=schema, request=request)
    )


async def visible_images(model: Model, images: Iterable[Blob], blobs: BlobStore) -> Mapping[str, bytes]:
    """Return the bytes of images by hash; empty for a model without vision."""
    if not model.vision:
        return {}
    return {hash: await blobs.read(hash) for hash in dict.fromkeys(blob.hash for blob in images)}


class ToolModels:
    """Use of models inside one tool call."""

    def __init__(self) -> None:
        self.usage = Usage()
        """Their usage."""
        self.stopped: RunStopped | None = None
        """Reason that one could not answer and the run, or its seed, can't continue: the result of the call is void."""


_TOOL_MODELS: ContextVar[ToolModels | None] = ContextVar("agentflow_tool_models", default=None)


@contextmanager
def watch_tool_models() -> Generator[ToolModels]:
    """Watch the models inside tools, including in tasks started within the block."""
    watched = ToolModels()
    token = _TOOL_MODELS.set(watched)
    try:
        yield watched
    finally:
        _TOOL_MODELS.reset(token)


def count_usage(usage: Usage) -> None:
    """Add the usage of a model inside a tool, if it is watched."""
    if (watched := _TOOL_MODELS.get()) is not None:
        watched.usage += usage


def void_call(stopped: RunStopped) -> None:
    """Void the tool call in which a model can't answer, if it is watched."""
    if (watched := _TOOL_MODELS.get()) is not None:
        watched.stopped = stopped
