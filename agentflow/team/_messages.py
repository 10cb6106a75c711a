"""Typed requests as the messages that a language model is sent.

The messages of a path begin with those of the path before it: the system's word, the seed, then each step as the
assistant's call and the user's observation. What is wanted now comes last. So an endpoint that keeps what it has read
reads only what is new.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import msgspec

from agentflow.models import Image, Message, Text
from agentflow.models import Part as MessagePart
from agentflow.team._prompts import prompt
from agentflow.trajectory import (
    Action,
    AnswerRequest,
    JudgementRequest,
    LookRequest,
    PlanRequest,
    Proposal,
    Step,
    ToolCard,
    WriteRequest,
)

__all__ = ["answer_messages", "judge_messages", "look_messages", "plan_messages", "write_messages"]

Pictures = Mapping[str, bytes]
"""Pictures by their hashes, as far as the model sees them."""

LONGEST_OBSERVATION = 6_000
"""Characters of an observation that are shown; from longer ones the middle is left out."""

_JSON = msgspec.json.Encoder()
_MARK = re.compile(r"<(?=/?(?:observation|seed)\b)", re.IGNORECASE)


def plan_messages(request: PlanRequest, pictures: Pictures) -> tuple[Message, ...]:
    """What to do next?"""
    system = prompt(
        "planner",
        "system",
        seed_description=request.seed_description,
        tips=request.tips,
        tools=_tools(msgspec.json.encode(request.tools)),
    )
    now = prompt(
        "planner",
        "now",
        count=request.count,
        taken=_listed(map(_call, request.taken)),
        refused=_listed(request.refused),
    )
    return (_system(system), *_path("planner", request.seed, request.path, pictures, now))


def judge_messages(request: JudgementRequest, pictures: Pictures) -> tuple[Message, ...]:
    """What is it worth?"""
    path = (*request.path, request.step)
    seen = "The same words came back before, elsewhere in the exploration." if request.seen_elsewhere else ""
    now = prompt("verifier", "now", number=len(path), seen=seen)
    return (_system(prompt("verifier", "system")), *_path("verifier", request.seed, path, pictures, now))


def write_messages(request: WriteRequest, pictures: Pictures) -> tuple[Message, ...]:
    """A question, please; after a rejection another one."""
    examples = "\n\n".join(f"Question: {each.question}\nAnswer: {each.answer}" for each in request.examples)
    system = prompt(
        "generator",
        "system",
        seed_description=request.seed_description,
        tips=request.tips,
        examples=examples,
    )
    evidence = "\n\n".join(
        f"{step.intent}\n{_call(step.action)}\n{_observation(number, step, pictures)}"
        for number, step in enumerate(request.evidence, start=1)
    )
    told = prompt("generator", "evidence", seed=_quoted(request.seed), evidence=evidence)
    shown = _shown(request.evidence, pictures)
    now = prompt("generator", "now", pictures=len(shown) or "")
    messages = [_system(system), Message("user", (Text(f"{told}\n\n{now}"), *shown))]
    for rejection in request.rejected:
        messages.append(Message("assistant", (Text(_json(rejection.draft)),)))
        messages.append(
            _user(prompt("generator", "rejected", reasons=_listed(rejection.reasons) or "- unusable"))
        )
    return tuple(messages)


def answer_messages(request: AnswerRequest) -> tuple[Message, ...]:
    """A question without its path."""
    return (
        _system(prompt("answerer", "system")),
        _user(prompt("answerer", "now", question=request.question)),
    )


def look_messages(request: LookRequest, picture: bytes) -> tuple[Message, ...]:
    """Is it there?"""
    region = request.region
    edges = (("left", region.left), ("top", region.top), ("right", region.right), ("bottom", region.bottom))
    where = ", ".join(f"{name} {share:.3f}" for name, share in edges)
    now = prompt("looker", "now", where=where, quote=_quoted(request.quote))
    return (
        _system(prompt("looker", "system")),
        Message("user", (Text(now), Image(picture, request.picture.mime))),
    )


def _path(name: str, seed: str, path: Sequence[Step], pictures: Pictures, now: str) -> tuple[Message, ...]:
    """The user's and the assistant's words in turn. The last of the user's has what is wanted now as its last part."""
    said: list[Message] = []
    parts: list[MessagePart] = [Text(prompt(name, "seed", seed=_quoted(seed)) + "\n")]
    for number, step in enumerate(path, start=1):
        proposal = Proposal(step.intent, step.action.tool, step.action.arguments)
        said.append(Message("user", tuple(parts)))
        said.append(Message("assistant", (Text(_json(proposal)),)))
        parts = [Text(_observation(number, step, pictures) + "\n"), *_shown([step], pictures)]
    return (*said, Message("user", (*parts, Text(now))))


def _observation(number: int, step: Step, pictures: Pictures) -> str:
    text = _quoted(_cut(step.observation))
    unseen = sum(blob.hash not in pictures for blob in step.images)
    if unseen:
        text = f"{text}\n({unseen} picture{'s' if unseen > 1 else ''} that can't be shown here)".strip()
    return f'<observation number="{number}">\n{text}\n</observation>'


def _shown(steps: Iterable[Step], pictures: Pictures) -> list[MessagePart]:
    blobs = {blob.hash: blob for step in steps for blob in step.images if blob.hash in pictures}
    return [Image(pictures[hash], blob.mime) for hash, blob in blobs.items()]


def _cut(text: str) -> str:
    if len(text) <= LONGEST_OBSERVATION:
        return text
    half = LONGEST_OBSERVATION // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def _quoted(text: str) -> str:
    """The text, without what would look like the end of its own block."""
    return _MARK.sub("< ", text) if "<" in text else text


@lru_cache(maxsize=64)
def _tools(tools: bytes) -> str:
    """The tools as text. Kept by content: a run asks with the same few sets of tools all the time."""
    cards = msgspec.json.decode(tools, type=tuple[ToolCard, ...])
    return "\n\n".join(
        f"## {card.name}\n\n{card.description}\n\nArguments: {_json(card.schema)}" for card in cards
    )


def _call(action: Action) -> str:
    return f"{action.tool} {_json(action.arguments)}"


def _listed(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _json(value: object) -> str:
    return _JSON.encode(value).decode()


def _system(text: str) -> Message:
    return Message("system", (Text(text),))


def _user(text: str) -> Message:
    return Message("user", (Text(text),))
