"""Tools with a model inside: one that answers from what it knows, and one that writes code and runs it."""

from typing import Annotated, TypeVar

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field

from agentflow.errors import ErrorKind, RunStopped, ToolFailure
from agentflow.models import Call, Message, Model, Text
from agentflow.sandbox import Backend, Session, tool
from agentflow.team._asking import ask_model
from agentflow.team._metering import count
from agentflow.team._prompts import prompt
from agentflow.team._rendering import cut, system, user, written
from agentflow.team._schemas import answer_schema
from mcp_servers import CallContext
from mcp_servers.code import CodeBackend

__all__ = ["model_tools"]

T = TypeVar("T")

PRINTED = 3_500
"""Characters of output that are shown."""
VARIABLES = 20
"""Variables that are shown."""
VALUE = 2_000
"""Characters of what is shown of them together."""


def model_tools(*, base_generator: Model | None = None, python_coder: Model | None = None) -> list[Backend]:
    """Backends with the tools `base_generator` and `python_coder`, each with a model of its own; for a sandbox in this process.

    :param base_generator: answers from what it knows; without one there is no such tool.
    :param python_coder: writes the code that is run in the sandbox; without one there is no such tool.
    """
    found: list[Backend] = []
    if base_generator is not None:
        found.append(_BaseGenerator(base_generator))
    if python_coder is not None:
        found.append(_PythonCoder(python_coder))
    return found


class Code(Struct, frozen=True):
    """A program."""

    code: str
    """Its source."""


class Coded(BaseModel):
    """What a program gave that a model wrote."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    code: str
    """The program."""
    stdout: str
    """What it printed."""
    value: str | None
    """The value of its last expression."""
    error: str | None
    """How it failed, if it did."""
    variables: str
    """Its variables, a line each."""


class _BaseGenerator(Backend):
    """One call of a model."""

    name = "base"
    description = "A model that answers from what it knows."

    def __init__(self, model: Model) -> None:
        self._model = model

    @tool(
        read_only=True,
        open_world=True,
        title="Generate with a model",
        limits=[
            "It knows nothing of what was found before, unless the query says it.",
            "It may be wrong in details, and knows nothing recent.",
        ],
        practices=[
            "Ask it to reason, to explain, to sum up or to put into words; look facts up with other tools.",
            "Give it all that it needs in the query.",
        ],
        examples=[{"query": "List, step by step, how to convert 72 degrees Fahrenheit to Celsius."}],
    )
    async def generator(
        self, query: Annotated[str, Field(description="What to do, with all that is needed for it.")]
    ) -> str:
        """Have a language model do what is asked, from what it knows and what the query says.

        Use it for general knowledge, reasoning and wording, and where no other tool fits.
        """
        messages = (system(prompt("generalist", "system")), user(prompt("generalist", "now", query=query)))
        return await _asked(self._model, Call(role="tool", messages=messages, reply=str), "base_generator")


class _PythonCoder(Backend):
    """Code by a model, run in the session's own Python."""

    name = "python"
    description = "A model that writes Python code, which is run in the sandbox."

    def __init__(self, model: Model) -> None:
        self._model = model
        self._code = CodeBackend()

    async def initialize(self, session: Session, settings: object) -> None:
        """Make the Python session that the code backend has, too."""
        if self._code.name not in session.live:
            await self._code.initialize(session, {})

    async def fork(self, session: Session, forked: Session) -> None:
        """Take it over; the interpreter was forked with the instance."""
        await self._code.fork(session, forked)

    @tool(
        title="Write and run Python code",
        limits=[
            "It sees the query alone: neither the question nor earlier results.",
            "It has no network, and the packages of the sandbox only.",
        ],
        practices=[
            "Say exactly what is to be computed, with all numbers and names, and what is to be printed.",
            "Use it for arithmetic, counting, dates, sorting and searching by computation.",
        ],
        examples=[{"query": "Print the sum of all primes below 100."}],
    )
    async def coder(
        self,
        session: Session,
        context: CallContext,
        query: Annotated[str, Field(description="What the code has to do, with all that it needs to know.")],
    ) -> Coded:
        """Have a language model write Python code for what is asked, run it, and return what it printed.

        Use it to compute. Variables last from call to call. A program that fails is written once more.
        """
        asked = [system(prompt("coder", "system")), user(prompt("coder", "now", query=query))]
        code = await self._write(asked)
        coded = await self._run(session, context, code)
        if coded.error is not None:
            said = Message("assistant", (Text(written(Code(code))),))
            asked += [said, user(prompt("coder", "failed", error=coded.error))]
            coded = await self._run(session, context, await self._write(asked))
        return coded

    async def _write(self, messages: list[Message]) -> str:
        call = Call(role="tool", messages=tuple(messages), reply=Code, schema=answer_schema(Code))
        return (await _asked(self._model, call, "python_coder")).code

    async def _run(self, session: Session, context: CallContext, code: str) -> Coded:
        ran = await self._code.run(session, context, code)
        lines: list[str] = []
        if ran.error is None:
            found = await self._code.variables(session, context)
            lines = [f"{each.name}: {each.type} = {each.summary}" for each in found.variables[:VARIABLES]]
        return Coded(
            code=code,
            stdout=cut(ran.stdout, PRINTED),
            value=None if ran.value is None else cut(ran.value, PRINTED),
            error=None if ran.error is None else f"{ran.error.type}: {ran.error.message}",
            variables=cut("\n".join(lines), VALUE),
        )


async def _asked(model: Model, call: Call[T], name: str) -> T:
    """The model's answer.

    :raises ToolFailure: if there is none; also where the run can't go on, which whoever asks a model next is told.
    """
    try:
        reply = await ask_model(model, call)
    except RunStopped as stopped:
        raise ToolFailure(ErrorKind.FAILED, f"{name}: {stopped.message}") from None
    count(reply.usage)
    if reply.value is None:
        why = "no answer" if reply.failure is None else f"{reply.failure.kind}: {reply.failure.message}"
        raise ToolFailure(ErrorKind.FAILED, f"{name}: {why}")
    return reply.value
