"""What the roles are asked of a task, as the messages that a language model is sent.

The planner and the verifier each have one conversation per episode, which only grows: what they were asked before stays
as it was, their answers stand between, and the newest result comes last. So an endpoint that keeps what it has read reads
only what is new. It begins anew only where the oldest turns were put in short.
"""

from collections.abc import Iterable

from agentflow.models import Message, Text
from agentflow.models import Part as MessagePart
from agentflow.team._prompts import prompt
from agentflow.team._rendering import (
    Pictures,
    called,
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
    AnalysisRequest,
    CommandRequest,
    DecidedStep,
    Memory,
    NextStepRequest,
    QueryAnalysis,
    SolutionRequest,
    SummaryRequest,
    ToolCard,
    Turn,
    VerificationRequest,
    Words,
)

__all__ = [
    "analysis_messages",
    "command_messages",
    "solution_messages",
    "step_messages",
    "summary_messages",
    "turn_size",
    "verification_messages",
]

_PLAIN = Words()


def analysis_messages(request: AnalysisRequest, pictures: Pictures) -> tuple[Message, ...]:
    """What does it take?"""
    head = prompt("analyst", "system", instructions=request.instructions, tools=told(request.tools))
    now = prompt("analyst", "now", question=quoted(request.question))
    return (system(head), Message("user", (Text(now), *pictured(request.images, pictures))))


def step_messages(
    request: NextStepRequest, pictures: Pictures, *, merged: bool, short: bool = False
) -> tuple[Message, ...]:
    """What next? Merged: and is that enough?

    How many steps are left stands at the end of each of the user's messages, as it stood there when it was asked.

    :param short: no word more than the question, the names of tools, and results: for models that were trained to it.
    """
    name = "scout" if short else "strategist"
    memory = request.memory
    coming = memory.summarised + len(memory.turns) + 1

    def now(number: int) -> Text:
        section = "decide" if merged and number > 1 else "next"
        return Text("\n" + prompt(name, section, left=request.turns_left + coming - number))

    names = ", ".join(tool.name for tool in request.tools)
    tools = "" if short else told(request.tools)
    messages = [system(prompt(name, "system", instructions=request.instructions, names=names, tools=tools))]
    parts = [
        *_begin(name, request.question, request.analysis, memory),
        *pictured(request.images, pictures),
        now(memory.summarised + 1),
    ]
    before: Turn | None = None
    for turn in memory.turns:
        messages.append(Message("user", tuple(parts)))
        messages.append(_assistant(_said(turn, before) if merged else turn.step, turn.said))
        parts = [*_result(name, turn, pictures)]
        if turn.decision is not None and not merged:
            parts.append(Text("\n" + _verdict(name, turn)))
        parts.append(now(turn.number + 1))
        before = turn
    return (*messages, Message("user", tuple(parts)))


def command_messages(request: CommandRequest) -> tuple[Message, ...]:
    """The arguments, please; after a mistake once more."""
    step = request.step
    messages = [
        system(prompt("caller", "system", tool=told([request.tool]))),
        user(
            prompt(
                "caller",
                "now",
                question=quoted(request.question),
                goal=step.sub_goal or step.justification,
                context=step.context,
            )
        ),
    ]
    if request.mistake:
        messages.append(_assistant(request.before))
        messages.append(user(prompt("caller", "mistake", mistake=request.mistake)))
    return tuple(messages)


def verification_messages(request: VerificationRequest, pictures: Pictures) -> tuple[Message, ...]:
    """Is that enough?"""
    tools = listed(f"{tool.name}: {_first_line(tool)}" for tool in request.tools)
    messages = [system(prompt("assessor", "system", tools=tools))]
    parts = [
        *_begin("assessor", request.question, request.analysis, request.memory),
        *pictured(request.images, pictures),
    ]
    for turn in request.memory.turns:
        parts += [*_result("assessor", turn, pictures), Text("\n" + prompt("assessor", "now"))]
        if turn.decision is not None:
            messages += [Message("user", tuple(parts)), _assistant(turn.decision, turn.decided)]
            parts = []
    if not request.memory.turns:
        parts.append(Text("\n" + prompt("assessor", "now")))
    return (*messages, Message("user", tuple(parts)))


def solution_messages(request: SolutionRequest, pictures: Pictures) -> tuple[Message, ...]:
    """The answer, please."""
    memory = request.memory
    now = prompt(
        "solver",
        "now",
        question=quoted(request.question),
        analysis=_analysis(request.analysis),
        count=memory.summarised or "",
        summary=quoted(memory.summary),
        steps=_steps(memory.turns, pictures),
    )
    images = [*request.images, *(blob for turn in memory.turns for blob in turn.images)]
    return (
        system(prompt("solver", "system")),
        Message("user", (Text(now), *pictured(images, pictures))),
    )


def summary_messages(request: SummaryRequest) -> tuple[Message, ...]:
    """In short, please."""
    now = prompt(
        "condenser",
        "now",
        question=quoted(request.question),
        summary=quoted(request.summary),
        steps=_steps(request.turns, {}),
    )
    return (system(prompt("condenser", "system")), user(now))


def turn_size(turn: Turn) -> int:
    """How many characters of a prompt a turn takes."""
    said = written(turn.step) if turn.decision is None else written((turn.step, turn.decision))
    return len(said) + len(turn.result) + (0 if turn.action is None else len(called(turn.action)))


def _begin(name: str, question: str, analysis: QueryAnalysis, memory: Memory) -> list[MessagePart]:
    told = prompt(name, "begin", question=quoted(question), analysis=_analysis(analysis))
    parts: list[MessagePart] = [Text(told + "\n")]
    if memory.summarised:
        short = prompt(name, "summary", count=memory.summarised, summary=quoted(memory.summary))
        parts.append(Text(f"\n{short}\n"))
    return parts


def _result(name: str, turn: Turn, pictures: Pictures) -> list[MessagePart]:
    return [Text(_shown(name, "result", turn, pictures) + "\n"), *pictured(turn.images, pictures)]


def _shown(name: str, section: str, turn: Turn, pictures: Pictures) -> str:
    return prompt(
        name,
        section,
        number=turn.number,
        goal=quoted(turn.step.sub_goal) or "without a goal",
        call="nothing" if turn.action is None else quoted(called(turn.action)),
        observation=marked(turn.number, turn.result, turn.images, pictures),
    )


def _steps(turns: Iterable[Turn], pictures: Pictures) -> str:
    return "\n\n".join(_shown("solver", "step", turn, pictures) for turn in turns)


def _verdict(name: str, turn: Turn) -> str:
    assert turn.decision is not None, "only a turn that was verified has a verdict"
    decision = turn.decision
    return prompt(name, "verdict", assessment=decision.assessment, analysis=decision.analysis or "-")


def _said(turn: Turn, before: Turn | None) -> object:
    """What a planner that decides by itself said before this turn: of the first one there was nothing to decide."""
    if before is None or before.decision is None:
        return turn.step
    return DecidedStep(before.decision, turn.step)


def _analysis(analysis: QueryAnalysis | None) -> str:
    if analysis is None:
        return ""
    lines = (
        ("Asked", analysis.concise_summary),
        ("Skills", analysis.required_skills),
        ("Tools", analysis.relevant_tools),
        ("Keep in mind", analysis.additional_considerations),
    )
    return "\n".join(f"{title}: {quoted(text)}" for title, text in lines if text)


def _first_line(tool: ToolCard) -> str:
    return tool.description.strip().partition("\n")[0]


def _assistant(meant: object, said: Words = _PLAIN) -> Message:
    """What the model meant, in its own words where they are known: its next prompt goes on from what it wrote."""
    return Message("assistant", (Text(said.text or written(meant)),), said.mark)
