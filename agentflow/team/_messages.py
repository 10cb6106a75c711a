"""Typed requests as the messages that a language model is sent.

The messages of a path begin with those of the path before it: the system's word, the seed, then each step as the
assistant's call and the user's observation. What is wanted now comes last. So an endpoint that keeps what it has read
reads only what is new.
"""

from collections.abc import Iterable, Sequence

from agentflow.models import Image, Message, Text
from agentflow.models import Part as MessagePart
from agentflow.team._prompts import prompt
from agentflow.team._rendering import (
    Pictures,
    called,
    cut,
    listed,
    marked,
    pictured,
    quoted,
    system,
    told,
    user,
    written,
)
from agentflow.trajectory import (
    AnswerRequest,
    JudgementRequest,
    LookRequest,
    PlanRequest,
    Proposal,
    Step,
    WriteRequest,
)

__all__ = ["answer_messages", "judge_messages", "look_messages", "plan_messages", "write_messages"]


def plan_messages(request: PlanRequest, pictures: Pictures) -> tuple[Message, ...]:
    """What to do next?"""
    head = prompt(
        "planner",
        "system",
        seed_description=request.seed_description,
        tips=request.tips,
        tools=told(request.tools),
    )
    now = prompt(
        "planner",
        "now",
        count=request.count,
        taken=listed(map(called, request.taken)),
        refused=listed(request.refused),
    )
    return (system(head), *_path("planner", request.seed, request.path, pictures, now))


def judge_messages(request: JudgementRequest, pictures: Pictures) -> tuple[Message, ...]:
    """What is it worth?"""
    path = (*request.path, request.step)
    seen = "The same words came back before, elsewhere in the exploration." if request.seen_elsewhere else ""
    now = prompt("verifier", "now", number=len(path), seen=seen)
    return (system(prompt("verifier", "system")), *_path("verifier", request.seed, path, pictures, now))


def write_messages(request: WriteRequest, pictures: Pictures) -> tuple[Message, ...]:
    """A question, please; after a rejection another one."""
    examples = "\n\n".join(f"Question: {each.question}\nAnswer: {each.answer}" for each in request.examples)
    head = prompt(
        "generator",
        "system",
        seed_description=request.seed_description,
        tips=request.tips,
        examples=examples,
    )
    evidence = "\n\n".join(
        f"{step.intent}\n{called(step.action)}\n{_observation(number, step, pictures)}"
        for number, step in enumerate(request.evidence, start=1)
    )
    found = prompt("generator", "evidence", seed=quoted(request.seed), evidence=evidence)
    shown = _shown(request.evidence, pictures)
    now = prompt("generator", "now", pictures=len(shown) or "")
    messages = [system(head), Message("user", (Text(f"{found}\n\n{now}"), *shown))]
    for rejection in request.rejected:
        messages.append(Message("assistant", (Text(written(rejection.draft)),)))
        messages.append(
            user(prompt("generator", "rejected", reasons=listed(rejection.reasons) or "- unusable"))
        )
    return tuple(messages)


def answer_messages(request: AnswerRequest) -> tuple[Message, ...]:
    """A question without its path."""
    return (
        system(prompt("answerer", "system")),
        user(prompt("answerer", "now", question=request.question)),
    )


def look_messages(request: LookRequest, picture: bytes) -> tuple[Message, ...]:
    """Is it there?"""
    region = request.region
    edges = (("left", region.left), ("top", region.top), ("right", region.right), ("bottom", region.bottom))
    where = ", ".join(f"{name} {share:.3f}" for name, share in edges)
    now = prompt("looker", "now", where=where, quote=quoted(request.quote))
    return (
        system(prompt("looker", "system")),
        Message("user", (Text(now), Image(picture, request.picture.mime))),
    )


def _path(name: str, seed: str, path: Sequence[Step], pictures: Pictures, now: str) -> tuple[Message, ...]:
    """The user's and the assistant's words in turn. The last of the user's has what is wanted now as its last part."""
    said: list[Message] = []
    parts: list[MessagePart] = [Text(prompt(name, "seed", seed=quoted(seed)) + "\n")]
    for number, step in enumerate(path, start=1):
        proposal = Proposal(step.intent, step.action.tool, step.action.arguments)
        said.append(Message("user", tuple(parts)))
        said.append(Message("assistant", (Text(written(proposal)),)))
        parts = [Text(_observation(number, step, pictures) + "\n"), *_shown([step], pictures)]
    return (*said, Message("user", (*parts, Text(now))))


def _observation(number: int, step: Step, pictures: Pictures) -> str:
    return marked(number, cut(step.observation), step.images, pictures)


def _shown(steps: Iterable[Step], pictures: Pictures) -> list[MessagePart]:
    return pictured((blob for step in steps for blob in step.images), pictures)
