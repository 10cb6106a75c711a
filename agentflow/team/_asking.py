"""Asking a model: what comes of it is data."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeAlias, TypeVar

from agentflow.errors import ModelFailure, ModelFailureKind
from agentflow.models import Call, Completion, Model
from agentflow.team._rendering import written
from agentflow.trajectory import Blob, Failure, Reply, Step, Usage

__all__ = ["ReadBlob", "ask_model", "broken", "pictures_of", "reply_of", "seen_by"]

T = TypeVar("T")
R = TypeVar("R")

ReadBlob: TypeAlias = Callable[[str], Awaitable[bytes]]
"""Gives the bytes of a blob by its hash."""


async def ask_model(model: Model, call: Call[T]) -> Reply[T]:
    """The model's answer; a failed call is a reply.

    :raises RunStopped: if the model can't be used any more.
    """

    def said(completion: Completion[T]) -> str:
        return "" if completion.text == written(completion.value) else completion.text

    return await reply_of(model, call, lambda completion: completion.value, said)


async def reply_of(
    model: Model,
    call: Call[T],
    read: Callable[[Completion[T]], R],
    said: Callable[[Completion[T]], str] = lambda _: "",
) -> Reply[R]:
    """What is read out of the model's answer; a failed call is a reply.

    :param said: how the model wrote it, where that can't be told from what is read.
    :raises RunStopped: if the model can't be used any more.
    """
    try:
        completion = await model.complete(call)
    except ModelFailure as failure:
        spent = Usage(failure.answers, failure.prompt_tokens, failure.completion_tokens)
        return Reply(
            failure=Failure(failure.kind, failure.message),
            usage=spent,
            tokens=failure.drawn[-1] if failure.drawn else None,
            unusable=failure.drawn[:-1],
        )
    return Reply(
        value=read(completion),
        usage=completion.usage,
        tokens=completion.tokens,
        unusable=completion.unusable,
        said=said(completion),
    )


def broken(why: str) -> Failure:
    """The failure of a role whose workers crashed."""
    return Failure(ModelFailureKind.UNAVAILABLE, why)


async def pictures_of(steps: Iterable[Step], model: Model, read: ReadBlob) -> Mapping[str, bytes]:
    """The pictures of these steps by their hashes; none for a model that does not see."""
    return await seen_by(model, (blob for step in steps for blob in step.images), read)


async def seen_by(model: Model, images: Iterable[Blob], read: ReadBlob) -> Mapping[str, bytes]:
    """Pictures by their hashes; none for a model that does not see."""
    if not model.vision:
        return {}
    return {hash: await read(hash) for hash in dict.fromkeys(blob.hash for blob in images)}
