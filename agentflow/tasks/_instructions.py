"""Instructions of tasks of state: written from the conditions, and checked against them."""

import re
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol

import msgspec
from msgspec import Struct

from agentflow.journal import Page
from agentflow.tasks._contract import TaskProblem
from agentflow.tasks._states import StateReader
from agentflow.tasks._survey import TaskCandidate
from agentflow.text import contains_phrase, word_count
from agentflow.trace import (
    Action,
    Example,
    InstructionRequest,
    Node,
    Reply,
    TaskInstruction,
    Tree,
    Usage,
)

_TALKS_OF_ITSELF = re.compile(
    r"\b(?:predicates?|conditions? (?:above|below|that)|verifier|the (?:observation|solution|gold)|step \d+ of the)\b",
    re.IGNORECASE,
)


class InstructionAuthor(Protocol):
    """Author of instructions: the generator of a team. A failed call is a reply, not an exception."""

    async def instruct(self, request: InstructionRequest) -> Reply[TaskInstruction]:
        """Write the instruction that a solution follows."""
        ...


class InstructionSettings(Struct, frozen=True, kw_only=True):
    """Settings of instructions."""

    max_drafts: int = 3
    """Maximum number of drafts; each gets the findings about the earlier ones."""
    max_words: int = 200
    """Maximum number of words."""
    tips: str = ""
    """The user's guidance."""
    examples: tuple[Example, ...] = ()
    """Examples of the wanted style."""


class WrittenInstruction(NamedTuple):
    """Instruction, or the findings about the last draft."""

    text: str
    """The last draft."""
    drafts: int
    """Number of drafts."""
    findings: tuple[tuple[TaskProblem, str], ...]
    """Problems of the last draft; empty if it is accepted."""
    usage: Usage
    """Model usage."""


async def write_instruction(
    key: str,
    tree: Tree,
    candidate: TaskCandidate,
    reader: StateReader,
    author: InstructionAuthor,
    settings: InstructionSettings,
    page: Page,
) -> WrittenInstruction:
    """Write drafts until one names everything that the conditions check, and nothing else."""
    nodes = [tree.by_id[node_id] for node_id in candidate.path]
    usage, rejected, text = Usage(), tuple[tuple[str, str], ...](), ""
    findings: tuple[tuple[TaskProblem, str], ...] = ()
    for number in range(1, settings.max_drafts + 1):
        request = _request(tree, candidate, nodes, reader, settings, rejected)
        reply = await page.once(
            f"instruct/{key}/{number}", Reply[TaskInstruction], partial(author.instruct, request)
        )
        usage += reply.usage
        if reply.value is None:
            reason = reply.failure.message if reply.failure else "no answer"
            return WrittenInstruction(text, number, ((TaskProblem.MODEL_FAILED, reason),), usage)
        text = reply.value.instruction.strip()
        findings = instruction_findings(text, candidate, _actions(nodes), reader, settings.max_words)
        if not findings:
            return WrittenInstruction(text, number, (), usage)
        rejected = (*rejected, (text, "; ".join(reason for _, reason in findings)))
    return WrittenInstruction(text, settings.max_drafts, findings, usage)


def instruction_findings(
    text: str, candidate: TaskCandidate, actions: Sequence[Action], reader: StateReader, max_words: int
) -> tuple[tuple[TaskProblem, str], ...]:
    """Return the problems of an instruction: something missing, something given away, too long."""
    findings: list[tuple[TaskProblem, str]] = []
    if word_count(text) < 3:
        return ((TaskProblem.BAD_INSTRUCTION, "it has fewer than three words"),)
    if word_count(text) > max_words:
        findings.append((TaskProblem.BAD_INSTRUCTION, f"it has more than {max_words} words"))
    if match := _TALKS_OF_ITSELF.search(text):
        findings.append(
            (TaskProblem.BAD_INSTRUCTION, f"it mentions {match[0]!r}, which its reader does not know")
        )
    plain = _plain(text)
    missing = [
        name
        for condition in candidate.conditions
        for name in reader.must_name(condition, actions)
        if _plain(name) not in plain
    ]
    findings += [
        (TaskProblem.BAD_INSTRUCTION, f"it does not name {name!r}, which is checked")
        for name in dict.fromkeys(missing)
    ]
    secrets = [
        secret for condition in candidate.conditions for secret in reader.must_hide(condition, actions)
    ]
    findings += [
        (TaskProblem.LEAK, f"it gives away {secret[:80]!r}, which is to be found out")
        for secret in dict.fromkeys(secrets)
        if _plain(secret) in plain and ("\n" in secret or contains_phrase(text, secret))
    ]
    return tuple(findings)


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def _actions(nodes: Sequence[Node]) -> tuple[Action, ...]:
    return tuple(node.action for node in nodes if node.action is not None)


def _request(
    tree: Tree,
    candidate: TaskCandidate,
    nodes: Sequence[Node],
    reader: StateReader,
    settings: InstructionSettings,
    rejected: tuple[tuple[str, str], ...],
) -> InstructionRequest:
    steps = [
        f"- {node.intent}\n  {node.action.tool} {msgspec.json.encode(node.action.arguments).decode()}"
        for node in nodes
        if node.action is not None
    ]
    return InstructionRequest(
        kind=reader.name,
        language="",
        seed=tree.seed.content,
        tips=settings.tips,
        examples=settings.examples,
        environment=candidate.before,
        solution="\n".join(steps),
        result="\n".join(f"- {reader.says(condition)}" for condition in candidate.conditions),
        rejected=rejected,
    )
