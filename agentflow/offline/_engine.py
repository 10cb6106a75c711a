"""Answers of the offline engine to typed requests: dispatch by type, the planner, and the verifier.

The planner follows leads that were mentioned and not looked into yet. The verifier checks for error, empty, repeated and
off topic, in this order; all else is new.
"""

import re
from collections.abc import Iterator
from itertools import takewhile, zip_longest
from random import Random
from typing import Any

import msgspec
from msgspec import Struct

from agentflow.offline._arguments import LOOKING, Kind, Leads, Use, kind_of, leads_of, uses_of
from agentflow.offline._language import terms
from agentflow.offline._questions import find_others, propose, read_all, read_hidden
from agentflow.offline._shell_work import DESKTOP_TOOLS, desktop_steps, shell_jobs
from agentflow.offline._solving import (
    analyse,
    command,
    decide,
    decided_step,
    next_step,
    solve,
    summarise,
)
from agentflow.offline._table_tasks import answer_table_request
from agentflow.questions import (
    HiddenRequest,
    ImageFacts,
    ImageFactsRequest,
    OthersRequest,
    ProposalRequest,
    ReadingRequest,
    Recalled,
    RecallRequest,
    RepairedDrafts,
    RepairRequest,
)
from agentflow.trace import (
    Action,
    AnalysisRequest,
    CommandRequest,
    DecisionRequest,
    IndependentSolutionRequest,
    InstructionRequest,
    Judgement,
    JudgementRequest,
    Look,
    LookRequest,
    NextStepRequest,
    Plan,
    PlanRequest,
    Proposal,
    Request,
    SolutionRequest,
    SolutionsRequest,
    SummaryRequest,
    TaskInstruction,
    ToolCard,
    Usage,
    Verdict,
    VerificationRequest,
    canonical,
)

_ORDER = (
    "put",
    "heat",
    "cool",
    "clean",
    "slice",
    "take",
    "turn on",
    "open",
    "go to",
    "examine",
    "close",
    "turn off",
    "look",
)
"""Verbs, the most effective first."""
_NUMBER = re.compile(r"^(?:\d+[.)]|-)\s+")


def world_calls(request: PlanRequest, acting: ToolCard) -> Iterator[tuple[ToolCard, Use]]:
    """Yield the beginning of the episode, then legal actions of the newest observation; undoing comes last."""
    reset = next((tool for tool in request.tools if tool.name.endswith("_reset")), None)
    if not request.path and reset is not None:
        yield reset, Use("Begin the episode.", {})
        return
    observation = next((step.text for step in reversed(request.path) if step.verdict is Verdict.NEW), "")
    actions = _actions(observation)
    done = {str(step.call.arguments.get("action")) for step in request.path}
    moves = [action for action in actions if action.startswith("go to")]
    Random(f"{request.seed} {sorted(done)}").shuffle(moves)
    ordered = sorted(
        (
            move
            for move in [*moves, *(action for action in actions if action not in moves)]
            if move not in done
        ),
        key=lambda move: (_undoes(move, done), _rank(move)),
    )
    for action in ordered:
        yield acting, Use(f"See what happens after: {action}.", {"action": action})


def _rank(action: str) -> int:
    return next((index for index, verb in enumerate(_ORDER) if action.startswith(verb)), len(_ORDER))


def _undoes(action: str, done: set[str]) -> bool:
    """Tell whether an action puts a thing back, or takes one again that was put down."""
    verb, _, rest = action.partition(" ")
    thing, _, location = rest.replace(" in ", " from ").replace(" on ", " from ").partition(" from ")
    if verb == "put":
        return f"take {thing} from {location}" in done
    return verb == "take" and any(earlier.startswith(f"put {thing} ") for earlier in done)


def _actions(observation: str) -> list[str]:
    """Return the legal actions in an observation: a numbered list below `actions:`."""
    _, heading, listed = f"\n{observation}".partition("\nactions:")
    lines = takewhile(lambda line: line.startswith(" "), listed.splitlines()[1:]) if heading else ()
    return [_NUMBER.sub("", line.strip()) for line in lines]


_NAMED = re.compile(r"`(?:\./)?([^`]+)`")
_REPOSITORY = "git repository"


def instruct(request: InstructionRequest) -> TaskInstruction:
    """Return an instruction: for files the intents of the actions that write them, otherwise the conditions."""
    conditions = [line.removeprefix("- ") for line in request.result.splitlines() if line.startswith("- ")]
    if request.kind not in ("terminal", "gui"):
        goals = [condition for condition in conditions if condition[:1].isupper()]
        return TaskInstruction(" ".join(goals or _wishes(conditions)))
    intents = [line.removeprefix("- ") for line in request.solution.splitlines() if line.startswith("- ")]
    return TaskInstruction(
        " ".join(intent for intent in intents if any(_asks(intent, condition) for condition in conditions))
    )


def _asks(intent: str, condition: str) -> bool:
    """Tell whether an intent asks for what a condition checks."""
    if _REPOSITORY in condition:
        return _REPOSITORY in intent
    name = _NAMED.search(condition)
    return name is not None and re.search(rf"(?<![\w/]){re.escape(name[1])}(?![\w/])", intent) is not None


def _wishes(conditions: list[str]) -> list[str]:
    """Return conditions on a world as requests: what to carry, what to put where, and the states of things."""
    carried = [
        condition.removeprefix("you carry ") for condition in conditions if condition.startswith("you carry ")
    ]
    others = [condition for condition in conditions if not condition.startswith("you carry ")]
    placed = [other for other in others if re.search(r" is (?:in|on) \w+(?: \w+)* \d+$", other)]
    puts = [f"Put {other.replace(' is ', ' ', 1)}." for other in placed]
    states = [
        f"{other[0].upper()}{other[1:].replace(' is ', ' must be ', 1)}."
        for other in others
        if other not in placed
    ]
    return [*puts, *([f"Carry {_joined(carried)}."] if carried else []), *states]


def _joined(clauses: list[str]) -> str:
    return clauses[0] if len(clauses) == 1 else f"{', '.join(clauses[:-1])} and {clauses[-1]}"


_BYTES_PER_TOKEN = 4
_ENCODER = msgspec.json.Encoder()
_SECONDS = re.compile(rb',"seconds":[-+.0-9eE]+')
"""Time stamps of turns. No role is shown them, so they are not counted as tokens."""
_MOSTLY = 0.9
"""Share of known words from which an observation counts as a repetition."""
_LITTLE = 5
"""Minimum number of content words for an off-topic verdict."""


def answer(request: Request[Any]) -> Struct:
    """Return the offline engine's answer to a typed request; equal requests have equal answers.

    Example::

        plan = answer(PlanRequest(...))
    """
    match request:
        case PlanRequest():
            return plan(request)
        case JudgementRequest():
            return judge(request)
        case InstructionRequest(language=""):
            return instruct(request)
        case LookRequest():
            # The engine has no vision.
            return Look(shows=False)
        case SolutionsRequest() | InstructionRequest() | IndependentSolutionRequest():
            return answer_table_request(request)
        case AnalysisRequest():
            return analyse(request)
        case NextStepRequest():
            return next_step(request)
        case CommandRequest():
            return command(request)
        case VerificationRequest():
            return decide(request)
        case DecisionRequest():
            return decided_step(request)
        case SolutionRequest():
            return solve(request)
        case SummaryRequest():
            return summarise(request)
        case _:
            return _about_documents(request)


def _about_documents(request: Request[Any]) -> Struct:
    """Answer the requests about questions over documents."""
    match request:
        case ProposalRequest():
            return propose(request)
        case RepairRequest():
            return RepairedDrafts(())
        case HiddenRequest():
            return read_hidden(request)
        case ReadingRequest():
            return read_all(request)
        case OthersRequest():
            return find_others(request)
        case RecallRequest():
            return Recalled("", is_certain=False)
        case ImageFactsRequest():
            # The engine has no vision.
            return ImageFacts(())
        case _:
            raise TypeError(f"the offline engine cannot answer {type(request).__name__}")


def usage_of(request: Request[Any], value: Struct) -> Usage:
    """Return the usage to account for one answer: four bytes of JSON are one token. See docs/offline.md."""
    return Usage(1, _tokens(_SECONDS.sub(b"", _ENCODER.encode(request))), _tokens(_ENCODER.encode(value)))


def _tokens(text: bytes) -> int:
    return -(-len(text) // _BYTES_PER_TOKEN)


def plan(request: PlanRequest) -> Plan:
    """Propose as many different actions as requested, spread over the tools; fewer only if there are no more."""
    leads = leads_of(request)
    known_calls = {canonical(action) for action in (*(step.call for step in request.path), *request.taken)}
    proposals: list[Proposal] = []
    for tool, use in _turns(request, leads):
        name = canonical(Action(tool.name, use.arguments))
        if name not in known_calls:
            known_calls.add(name)
            proposals.append(Proposal(use.intent, tool.name, use.arguments))
        if len(proposals) >= request.count:
            break
    return Plan(tuple(proposals))


def _turns(request: PlanRequest, leads: Leads) -> Iterator[tuple[ToolCard, Use]]:
    """Yield tool calls, each tool in turn; tools that only describe themselves come last."""
    kinds = [(tool, kind) for tool in request.tools if (kind := kind_of(tool)) is not None]
    if acting := next((tool for tool in request.tools if tool.name == "world_act"), None):
        yield from world_calls(request, acting)
        return
    cards = {tool.name: tool for tool in request.tools}
    if cards.keys() >= DESKTOP_TOOLS:
        yield from ((cards[tool], use) for tool, use in desktop_steps(request))
        return
    # Results of other tools are worked with; without them, a shell makes its own files.
    names = {tool.name for tool, _ in kinds}
    shells = kinds and all(kind.name == "shell" for _, kind in kinds)
    if shells and all(step.call.tool in names for step in request.path):
        for job in shell_jobs(request.seed, request.path):
            yield kinds[0][0], Use(job.intent, {kinds[0][1].main: job.command})
    ordered = _ordered(kinds, len(request.path), bool(leads.observed))
    for turns in zip_longest(*(_calls(tool, kind, leads) for tool, kind in ordered)):
        yield from filter(None, turns)
    for tool, kind in kinds:
        if kind.name == "plain":
            yield from _calls(tool, kind, leads)


def _calls(tool: ToolCard, kind: Kind, leads: Leads) -> Iterator[tuple[ToolCard, Use]]:
    return ((tool, use) for use in uses_of(tool, kind, leads))


def _ordered(kinds: list[tuple[ToolCard, Kind]], depth: int, seen: bool) -> list[tuple[ToolCard, Kind]]:
    """Return the tools in order: a search first, the others rotated by depth. Before any observation, only a search."""
    looking = [entry for entry in kinds if entry[1].name in LOOKING]
    computing = [entry for entry in kinds if entry[1].name in ("shell", "python", "sql")]
    looking.sort(key=lambda entry: LOOKING.index(entry[1].name))
    if not looking:
        return _turned(computing, depth)
    reading = [entry for entry in looking[1:] if entry[1].name == "read"]
    others = [entry for entry in looking[1:] if entry not in reading]
    if not seen:
        return [looking[0]]
    # A search has shown most of a document already, so reading all of it is the last choice.
    return [looking[0], *_turned([*others, *computing], depth), *reading]


def _turned(entries: list[tuple[ToolCard, Kind]], depth: int) -> list[tuple[ToolCard, Kind]]:
    start = depth % len(entries) if entries else 0
    return [*entries[start:], *entries[:start]]


def judge(request: JudgementRequest) -> Judgement:
    """Return the verdict on an observation."""
    if request.step.error:
        return Judgement(Verdict.ERROR, request.step.error)
    observation = request.step.text
    if not any(character.isalnum() for character in observation):
        return Judgement(
            Verdict.NEW if request.step.images else Verdict.EMPTY,
            "" if request.step.images else "it says nothing",
        )
    if request.seen_elsewhere:
        return Judgement(Verdict.REPEATS, "the same words came back elsewhere in the tree")
    observed_terms = set(terms(observation))
    known_terms = set[str]().union(*(terms(step.text) for step in request.path))
    if observed_terms and len(observed_terms & known_terms) >= _MOSTLY * len(observed_terms):
        return Judgement(Verdict.REPEATS, "the path knew it already")
    topic = known_terms.union(
        terms(request.seed), *(terms(step.intent) for step in (*request.path, request.step))
    )
    if not request.computes and len(observed_terms) >= _LITTLE and topic and observed_terms.isdisjoint(topic):
        return Judgement(Verdict.OFF_TOPIC, "it shares no telling word with the seed and the path")
    return Judgement(Verdict.NEW)
