"""Episodes of any agent: the conversations that a gateway recorded, message by message."""

from collections.abc import Collection, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from agentflow._folder_files import open_file
from agentflow.errors import ConfigurationError
from agentflow.gateway import (
    RecordedCall,
    RecordedEpisode,
    recorded_episode,
    recorded_ids,
    rewards_of,
    trained_tokens,
)
from agentflow.inspection._reader import unreadable_reported
from agentflow.inspection._types import AnswerRecord, SeedRecord, empty_tree, numbered_calls
from agentflow.models import ImagePart, Message, Part, TextPart, ToolCall, ToolReply, ToolSpec
from agentflow.runs import image_file
from agentflow.text import escape_all_special_tokens, escape_special_tokens
from agentflow.trace import Blob, ChatMessage

_SOLVED: Final = 1.0
"""Reward from which an episode is right, if its agent does not say so itself."""


def content_key(folder: Path, files: Sequence[Path], gateway: Path) -> str:
    """Return the digest of the files of a run and of its recorded episodes: the same content gives the same key."""
    total = sha256()
    for id in recorded_ids(gateway):
        if (episode := recorded_episode(gateway, id)) is not None and episode.calls:
            total.update(msgspec.json.encode([id, episode.state, episode.outcome, len(episode.calls)]))
    for path in files:
        if path.exists():
            with unreadable_reported(path), open_file(path, folder) as file:
                while part := file.read(1 << 20):
                    total.update(part)
        total.update(b"\0")
    return total.hexdigest()[:32]


def unused_episodes(gateway: Path, used: Collection[str]) -> Iterator[SeedRecord]:
    """Yield the recorded episodes that no step used.

    :param used: ids of those that one used.
    """
    for id in recorded_ids(gateway):
        if id not in used and (episode := recorded_episode(gateway, id)) is not None:
            yield from episode_records(episode)


def episode_records(episode: RecordedEpisode) -> Iterator[SeedRecord]:
    """Yield an episode for each trained agent or, if none is trained, for each agent."""
    calls = [call for call in episode.calls if call.trained] or episode.calls
    for agent in sorted({call.agent for call in calls}):
        yield agent_record(episode, agent)


def agent_record(episode: RecordedEpisode, agent: str) -> SeedRecord:
    """Return the conversations of an agent in an episode, with its reward and its tokens."""
    offer, outcome = episode.offer, episode.outcome
    suffix = f"#{agent}" if agent else ""
    reward = None
    if outcome is not None and not outcome.failure:
        reward = rewards_of(outcome, {agent: None}).get(agent)
    exact = trained_tokens(episode.calls).get(agent, [])
    return SeedRecord(
        tree=empty_tree(f"{offer.id}{suffix}", offer.task.id, offer.task.question),
        draw=f"{offer.group}{suffix}",
        is_episode=True,
        answers=_answers(episode, agent, f"{offer.id}{suffix}", reward),
        calls=numbered_calls((tokens for _, tokens in exact), agent),
        reward=reward,
        facts={
            "agent": agent,
            "state": episode.state.value,
            **({"kwargs": offer.task.kwargs} if offer.task.kwargs else {}),
        },
        is_validation=offer.mode == "validate",
    )


def _answers(episode: RecordedEpisode, agent: str, id: str, reward: float | None) -> tuple[AnswerRecord, ...]:
    """Return the conversations of an agent; calls that none continues end them."""
    task, outcome = episode.offer.task, episode.outcome
    paths = _paths([call for call in episode.calls if call.agent == agent], id)
    success = None if outcome is None else outcome.success
    is_right = (reward is not None and reward >= _SOLVED) if success is None else success
    trained = set[str]()
    answers: list[AnswerRecord] = []
    for number, path in enumerate(paths):
        messages = _conversation(path, trained)
        if messages is not None:
            text = str(messages[-1]["content"])
            answers.append(
                AnswerRecord(
                    id=id if len(paths) == 1 else f"{id}/{number}",
                    question=task.question,
                    answer=text if outcome is None or outcome.answer is None else outcome.answer,
                    nodes=(),
                    score=reward,
                    right=is_right,
                    references=task.references,
                    messages=tuple(messages),
                    images=tuple(_images(path)),
                    tools=_tools(path),
                )
            )
    return tuple(answers)


def _paths(calls: Sequence[RecordedCall], id: str) -> list[tuple[RecordedCall, ...]]:
    """Return the calls of each conversation. Answers that no client received end none.

    :raises ConfigurationError: if a call continues one that is missing.
    """
    paths: dict[str, tuple[RecordedCall, ...]] = {}
    for call in calls:
        if call.parent and call.parent not in paths:
            raise ConfigurationError(
                f"episode {id!r:.100}: call {call.id!r:.100} continues {call.parent!r:.100}, which is missing"
            )
        paths[call.id] = (*paths.get(call.parent, ()), call)
    continued = {call.parent for call in calls if call.delivered}
    return [paths[call.id] for call in calls if call.delivered and call.id not in continued]


def _tools(path: Sequence[RecordedCall]) -> tuple[ToolSpec, ...]:
    """Return the tools that the last call was offered."""
    return next((call.tools for call in reversed(path) if call.tools is not None), ())


def _conversation(path: Sequence[RecordedCall], trained: set[str]) -> list[ChatMessage] | None:
    """Return the messages of a path; `None`: it has no prompt of messages.

    :param trained: ids of the answers that an earlier conversation trains; those of this one are added.
    """
    messages: list[ChatMessage] = []
    for call in path:
        for message in call.messages:
            # An answer that was not sampled here, such as an example in a prompt.
            messages += _chat_messages(message, is_context=True)
        if not messages:
            return None
        answer = replace(call.answer, reasoning=call.reasoning)
        messages += _chat_messages(answer, is_context=not call.delivered or call.id in trained)
        trained.add(call.id)
    _mask_failed(messages)
    return messages


def _chat_messages(message: Message, *, is_context: bool) -> list[ChatMessage]:
    """Return a message as those of chat templates; each result of a tool is one."""
    content = _content(message.parts)
    results = [_result(part) for part in message.parts if isinstance(part, ToolReply)]
    if message.role != "assistant":
        return [*results, *([{"role": message.role, "content": content}] if content or not results else [])]
    calls = [part for part in message.parts if isinstance(part, ToolCall)]
    answer: ChatMessage = {"role": "assistant", "content": content}
    if message.reasoning:
        answer["reasoning_content"] = escape_special_tokens(message.reasoning)
    if calls:
        answer["tool_calls"] = [_call(call) for call in calls]
    if is_context:
        answer |= {"trainable": False, "context": True}
    elif any(call.arguments is None for call in calls):
        answer["trainable"] = False
    return [answer]


def _result(reply: ToolReply) -> ChatMessage:
    shown = {"tool_call_id": reply.call, "name": escape_special_tokens(reply.name)}
    failed = {"failed": True} if reply.failed else {}
    return {"role": "tool", **shown, "content": _content(reply.parts), **failed}


def _content(parts: Sequence[Part]) -> str | list[dict[str, str]]:
    """Return the texts of a message; with images, the list of its parts."""
    if not any(isinstance(part, ImagePart) for part in parts):
        return escape_special_tokens("\n".join(part.text for part in parts if isinstance(part, TextPart)))
    return [
        {"type": "image", "path": image_file(_blob(part))}
        if isinstance(part, ImagePart)
        else {"type": "text", "text": escape_special_tokens(part.text)}
        for part in parts
        if isinstance(part, TextPart | ImagePart)
    ]


def _images(path: Sequence[RecordedCall]) -> Iterator[Blob]:
    for message in (message for call in path for message in call.messages):
        for part in message.parts:
            shown = part.parts if isinstance(part, ToolReply) else (part,)
            yield from (_blob(image) for image in shown if isinstance(image, ImagePart))


def _blob(image: ImagePart) -> Blob:
    # The data of a recorded image is the hash of its bytes.
    return Blob(image.data.decode("ascii", "replace"), image.mime)


def _call(call: ToolCall) -> dict[str, Any]:
    arguments = {"written": call.raw_arguments} if call.arguments is None else call.arguments
    function = {
        "name": escape_special_tokens(call.name),
        "arguments": {
            escape_special_tokens(name): escape_all_special_tokens(value) for name, value in arguments.items()
        },
    }
    return {"id": call.id, "type": "function", "function": function}


def _mask_failed(messages: Sequence[ChatMessage]) -> None:
    """Mask the answers whose calls failed, as their clients said."""
    last: ChatMessage = {}
    for message in messages:
        if message["role"] == "assistant":
            last = message
        elif message.pop("failed", False) and not last.get("context"):
            last["trainable"] = False
