"""Calls of language models by the roles, and the usage of models inside tools."""

from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias, TypeVar

import msgspec

from agentflow.models import Call, Message, Model, ask_model
from agentflow.team._schemas import answer_schema
from agentflow.trajectory import Blob, Reply, Request, Usage

A = TypeVar("A", bound=msgspec.Struct)

ReadBlob: TypeAlias = Callable[[str], Awaitable[bytes]]
"""Returns the bytes of a blob, given its hash."""


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


async def visible_images(model: Model, images: Iterable[Blob], read: ReadBlob) -> Mapping[str, bytes]:
    """Return the bytes of images by hash; empty for a model without vision."""
    if not model.vision:
        return {}
    return {hash: await read(hash) for hash in dict.fromkeys(blob.hash for blob in images)}


_SPENT: ContextVar[list[Usage] | None] = ContextVar("agentflow_spent", default=None)


@contextmanager
def measure_usage() -> Generator[list[Usage]]:
    """Collect the usage of models inside tools, including in tasks started within the block."""
    spent: list[Usage] = []
    token = _SPENT.set(spent)
    try:
        yield spent
    finally:
        _SPENT.reset(token)


def count_usage(usage: Usage) -> None:
    """Add the usage of a model inside a tool, if it is measured."""
    if (spent := _SPENT.get()) is not None:
        spent.append(usage)
