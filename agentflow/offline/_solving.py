"""The four roles of a team that solves tasks: they look up the names in the question, and what these lead to."""

import re
from contextlib import suppress
from typing import Any

import msgspec

from agentflow.offline._answering import ShortAnswer, answer_from, asked_in, mentioned_by
from agentflow.offline._arguments import Use, kind_of, uses_of
from agentflow.offline._language import names, terms
from agentflow.offline._leads import Leads, ids_in, urls_in
from agentflow.trajectory import (
    Action,
    AnalysisRequest,
    Assessment,
    Command,
    CommandRequest,
    DecidedStep,
    Decision,
    DecisionRequest,
    Memory,
    NextStep,
    NextStepRequest,
    QueryAnalysis,
    Solution,
    SolutionRequest,
    Summary,
    SummaryRequest,
    ToolCard,
    VerificationRequest,
    canonical,
)

_LOOKING = ("search", "read", "visit", "other")
_LONGEST_SUMMARY = 20_000
_COUNTING = re.compile(r"\bhow (?:many|much|far|long|old)\b", re.IGNORECASE)
_BARE = re.compile(r"-?\d+(?:\.\d+)?")


def analyse(request: AnalysisRequest) -> QueryAnalysis:
    """Return the names in the question, and the tools that can look them up."""
    named = names(request.question) or terms(request.question)[:6]
    looking = [tool.name for tool in _by_use(request.tools)]
    return QueryAnalysis(
        concise_summary=" ".join(request.question.split())[:300],
        required_skills="Looking things up, and following what they mention.",
        relevant_tools=", ".join(looking) or "none",
        additional_considerations=f"Look up: {', '.join(named)}." if named else "",
    )


def next_step(request: NextStepRequest) -> NextStep:
    """Return the best call not made yet. Its arguments are the context, from which the executor reads them."""
    texts = _texts(request.memory)
    known = {canonical(turn.action) for turn in request.memory.turns if turn.action is not None}
    followed = _followed(request.memory)
    leads = _leads(request.question, texts, followed)
    for tool in _by_use(request.tools):
        kind = kind_of(tool)
        assert kind is not None, "only such tools are in use"
        for use in uses_of(tool, kind, leads):
            if canonical(Action(tool.name, use.arguments)) not in known:
                return _step(tool, use)
    tool = request.tools[0]
    return NextStep("Nothing is left to look up.", "{}", "See what there is.", tool.name)


def command(request: CommandRequest) -> Command:
    """Return the arguments that the planner proposed; without any, those that fit its words."""
    arguments = _said(request.step.context, request.tool)
    if arguments is None:
        words = f"{request.step.sub_goal} {request.step.context}"
        kind = kind_of(request.tool)
        if kind is not None:
            leads = _leads(words, (), frozenset())
            arguments = next((use.arguments for use in uses_of(request.tool, kind, leads)), None)
    return Command(request.step.sub_goal, arguments or {})


def _said(context: str, tool: ToolCard) -> dict[str, Any] | None:
    """Parse arguments written as JSON, or as lines of `name: value`."""
    with suppress(msgspec.MsgspecError):
        return msgspec.json.decode(context, type=dict[str, Any])
    lines = [line.partition(": ") for line in context.splitlines()]
    known = tool.schema.get("properties", {})
    if not lines or not all(colon and name in known for name, colon, _ in lines):
        return None
    return {name: value for name, _, value in lines}


def decide(request: VerificationRequest) -> Decision:
    """Stop as soon as the observations answer the question."""
    return _decision(_answered(request.question, request.memory))


def decided_step(request: DecisionRequest) -> DecidedStep:
    """Return the decision and the next step."""
    decision = _decision(_answered(request.next.question, request.next.memory))
    return DecidedStep(decision, None if decision.stop else next_step(request.next))


def solve(request: SolutionRequest) -> Solution:
    """Answer from the observations: surely, else by a guess, else with nothing."""
    found = _answered(request.question, request.memory)
    if found is None:
        return Solution("What was seen does not answer the question.", "")
    return Solution(found.working, found.answer)


def summarise(request: SummaryRequest) -> Summary:
    """Return all text of the turns that fits."""
    said = [request.summary, *(turn.result for turn in request.turns)]
    return Summary("\n".join(text for text in said if text)[:_LONGEST_SUMMARY])


def _answered(question: str, memory: Memory) -> ShortAnswer | None:
    """Return the answer in the observations; without a sure one, a number that the last call computed."""
    found = answer_from(question, _texts(memory))
    if (found is not None and found.sure) or not memory.turns or not _COUNTING.search(question):
        return found
    last = memory.turns[-1].result.strip()
    return ShortAnswer(last, f"It was computed: {last}.", sure=True) if _BARE.fullmatch(last) else found


def _decision(found: ShortAnswer | None) -> Decision:
    if found is None:
        return Decision("Nothing that was seen answers the question.", Assessment.INCOMPLETE, stop=False)
    if not found.sure:
        return Decision("Something like it was seen.", Assessment.UNVERIFIED, stop=False)
    return Decision(found.working, Assessment.COMPLETE, stop=True)


def _texts(memory: Memory) -> tuple[str, ...]:
    return (*([memory.summary] if memory.summary else []), *(turn.result for turn in memory.turns))


def _followed(memory: Memory) -> frozenset[str]:
    values = (value for turn in memory.turns if turn.action for value in turn.action.arguments.values())
    return frozenset(value.lower() for value in values if isinstance(value, str))


def _leads(question: str, texts: tuple[str, ...], followed: frozenset[str]) -> Leads:
    """Return the names in the question, then what these led to, then everything mentioned."""
    question = asked_in(question)
    subjects = dict.fromkeys(names(question))
    subjects.update(dict.fromkeys(mentioned_by(question, texts)))
    subjects.setdefault(" ".join(terms(question)[:6]))
    subjects.update(dict.fromkeys(name for text in reversed(texts) for name in names(text)))
    return Leads(
        tuple(name for name in subjects if name and name.lower() not in followed),
        tuple(id for text in reversed(texts) for id in ids_in(text) if id.lower() not in followed),
        tuple(url for text in reversed(texts) for url in urls_in(text) if url.lower() not in followed),
        tuple(reversed(texts)),
    )


def _by_use(tools: tuple[ToolCard, ...]) -> list[ToolCard]:
    """Return the tools that return text, searches first, then those that compute."""
    order = (*_LOOKING, "sql", "python", "shell", "plain")
    kinds = [(kind.name, tool) for tool in tools if (kind := kind_of(tool)) is not None]
    return [tool for _, tool in sorted(kinds, key=lambda entry: order.index(entry[0]))]


def _step(tool: ToolCard, use: Use) -> NextStep:
    context = msgspec.json.encode(use.arguments).decode()
    return NextStep("It was named and not looked into yet.", context, use.intent, tool.name)
