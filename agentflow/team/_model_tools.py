"""Tools with a model inside: `base_generator` answers from its own knowledge, `python_coder` writes and runs code."""

from typing import Annotated, TypeVar

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field

from agentflow.errors import ErrorKind, RunStopped, ToolFailure
from agentflow.models import Call, Message, Model, TextPart, ask_model
from agentflow.sandbox import Backend, Session, tool
from agentflow.team._executor import count_usage, void_call
from agentflow.team._rendering import cut, json_text, prompt, system, user
from agentflow.team._schemas import answer_schema
from mcp_servers import CallContext
from mcp_servers.code import CodeBackend

T = TypeVar("T")

MAX_OUTPUT_CHARS = 3_500
MAX_VARIABLES = 20
MAX_VARIABLES_CHARS = 2_000


def model_tools(*, base_generator: Model | None = None, python_coder: Model | None = None) -> list[Backend]:
    """Return backends with the tools `base_generator` and `python_coder`, for a sandbox in this process.

    Example::

        sandbox = Sandbox(backends=["code", *model_tools(python_coder=model)])

    :param base_generator: model that answers from its own knowledge; without it the tool is absent.
    :param python_coder: model that writes the code run in the sandbox; without it the tool is absent.
    """
    found: list[Backend] = []
    if base_generator is not None:
        found.append(_BaseGenerator(base_generator))
    if python_coder is not None:
        found.append(_PythonCoder(python_coder))
    return found


class Program(Struct, frozen=True):
    """Program written by the model."""

    code: str


class ProgramResult(BaseModel):
    """Result of a program written by the model."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    code: str
    """Source code of the program."""
    stdout: str
    """Standard output."""
    value: str | None
    """Value of its last expression."""
    error: str | None
    """Exception type and message, if it failed."""
    variables: str
    """Its variables, one per line."""


class _BaseGenerator(Backend):
    """Backend of `base_generator`: one model call."""

    name = "base"
    description = "A language model that answers from its own knowledge."

    def __init__(self, model: Model) -> None:
        self._model = model

    @tool(
        read_only=True,
        open_world=True,
        title="Generate with a model",
        limits=[
            "It sees only the query: include earlier results that it needs.",
            "It may be wrong in details and knows nothing recent.",
        ],
        practices=[
            "Use it to reason, explain, summarise or rephrase; look up facts with other tools.",
            "Put everything it needs into the query.",
        ],
        examples=[{"query": "List, step by step, how to convert 72 degrees Fahrenheit to Celsius."}],
    )
    async def generator(
        self, query: Annotated[str, Field(description="The task, with everything needed for it.")]
    ) -> str:
        """Have a language model do a task from its own knowledge and the query.

        Use it for general knowledge, reasoning and wording, and when no other tool fits.
        """
        messages = (
            system(prompt("tool_base_generator", "system")),
            user(prompt("tool_base_generator", "now", query=query)),
        )
        return await _ask(self._model, Call(role="tool", messages=messages, reply=str), "base_generator")


class _PythonCoder(Backend):
    """Backend of `python_coder`: code written by a model, run in the session's Python interpreter."""

    name = "python"
    description = "A language model that writes Python code and runs it in the sandbox."

    def __init__(self, model: Model) -> None:
        self._model = model
        self._code = CodeBackend()

    async def initialize(self, session: Session, settings: object) -> None:
        """Start the Python session shared with the code backend."""
        if self._code.name not in session.live:
            await self._code.initialize(session, {})

    async def fork(self, session: Session, forked: Session) -> None:
        """Adopt the forked interpreter."""
        await self._code.fork(session, forked)

    @tool(
        title="Write and run Python code",
        limits=[
            "It sees only the query, neither the question nor earlier results.",
            "It has no network and only the sandbox's packages.",
        ],
        practices=[
            "State exactly what to compute, with all numbers and names, and what to print.",
            "Use it for arithmetic, counting, dates, sorting and searching by computation.",
        ],
        examples=[{"query": "Print the sum of all primes below 100."}],
    )
    async def coder(
        self,
        session: Session,
        context: CallContext,
        query: Annotated[
            str, Field(description="The task of the program, with everything it needs to know.")
        ],
    ) -> ProgramResult:
        """Have a language model write Python code for a task, run it, and return its output.

        Use it to compute. Variables persist between calls. A program that fails is rewritten once.
        """
        messages = [
            system(prompt("tool_python_coder", "system")),
            user(prompt("tool_python_coder", "now", query=query)),
        ]
        code = await self._write(messages)
        result = await self._run(session, context, code)
        if result.error is not None:
            answer = Message("assistant", (TextPart(json_text(Program(code))),))
            messages += [answer, user(prompt("tool_python_coder", "failed", error=result.error))]
            result = await self._run(session, context, await self._write(messages))
        return result

    async def _write(self, messages: list[Message]) -> str:
        call = Call(role="tool", messages=tuple(messages), reply=Program, schema=answer_schema(Program))
        return (await _ask(self._model, call, "python_coder")).code

    async def _run(self, session: Session, context: CallContext, code: str) -> ProgramResult:
        ran = await self._code.run(session, context, code)
        lines: list[str] = []
        if ran.error is None:
            found = await self._code.variables(session, context)
            lines = [f"{each.name}: {each.type} = {each.summary}" for each in found.variables[:MAX_VARIABLES]]
        return ProgramResult(
            code=code,
            stdout=cut(ran.stdout, MAX_OUTPUT_CHARS),
            value=None if ran.value is None else cut(ran.value, MAX_OUTPUT_CHARS),
            error=None if ran.error is None else f"{ran.error.type}: {ran.error.message}",
            variables=cut("\n".join(lines), MAX_VARIABLES_CHARS),
        )


async def _ask(model: Model, call: Call[T], name: str) -> T:
    """Return the model's answer and count its usage.

    :raises ToolFailure: if there is no answer, also if the run must stop: the call is void then.
    """
    try:
        reply = await ask_model(model, call)
    except RunStopped as stopped:
        void_call(stopped)
        raise ToolFailure(ErrorKind.FAILED, f"{name}: {stopped.message}") from None
    count_usage(reply.usage)
    if reply.value is None:
        why = "no answer" if reply.failure is None else f"{reply.failure.kind}: {reply.failure.message}"
        raise ToolFailure(ErrorKind.FAILED, f"{name}: {why}")
    return reply.value
