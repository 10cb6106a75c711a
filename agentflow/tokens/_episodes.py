"""The calls of an episode that are trained."""

from collections.abc import Collection

from agentflow.tokens._calls import TokenCall, Voice
from agentflow.trajectory import Episode

__all__ = ["calls_of"]


def calls_of(episode: Episode, *, name: str = "", roles: Collection[str] = ("planner",)) -> list[TokenCall]:
    """The calls of those roles whose tokens are known, in order; also of answers that were cut or could not be used.

    An answer that could not be used and was asked for again stands before the one that could.

    :param name: the episode's own, where a task has several; by default its task's.
    :param roles: who is trained.
    """
    known = name or episode.task.id
    calls: list[TokenCall] = []
    for exchange in episode.exchanges:
        if exchange.role in roles and exchange.tokens is not None:
            voice, id = Voice(role=exchange.role, episode=known), f"{known}/{exchange.key}"
            for number, tokens in enumerate(exchange.unusable, 1):
                calls.append(TokenCall(id=f"{id}/unusable/{number}", voice=voice, tokens=tokens))
            calls.append(TokenCall(id=id, voice=voice, tokens=exchange.tokens))
    return calls
