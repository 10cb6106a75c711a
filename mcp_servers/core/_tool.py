"""A tool: defined once by a typed signature; its schema, validation, route and prompt text follow from it."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar, cast

from mcp_servers.core._signature import Signature

__all__ = ["CARD_KEY", "UNUSABLE_KEY", "Hints", "Tool", "tool", "tools_of"]

CARD_KEY: Final = "agentflow/card"
"""Key in the `_meta` of a listed tool that holds its limits, practices and examples."""

UNUSABLE_KEY: Final = "agentflow/unusable"
"""Key in the `_meta` of a listed tool that holds the reason why it cannot work on this server."""

F = TypeVar("F", bound=Callable[..., Awaitable[object]])

_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
_MARK = "__agentflow_tool__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What a client may assume of a tool before it calls it."""

    read_only: bool = False
    """It changes nothing."""
    destructive: bool = True
    """It may destroy or overwrite something."""
    idempotent: bool = False
    """Calling it again with the same arguments changes nothing more."""
    open_world: bool = False
    """It reaches things outside of the sandbox."""

    @property
    def changes_world(self) -> bool:
        """It may change something that outlives the sandbox."""
        return self.open_world and not self.read_only


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool of a backend, bound to it and ready to be called.

    `Tool.of` makes one from a typed async function; a backend that gets its schemas from elsewhere fills in
    the fields itself.
    """

    backend: str
    """The family it belongs to."""
    verb: str
    """Its own name in the family."""
    title: str
    """A name for people."""
    description: str
    """Tells a model what it does and when to use it."""
    input_schema: dict[str, object]
    """JSON schema of its arguments."""
    output_schema: dict[str, object] | None
    """JSON schema of its data."""
    hints: Hints
    """The four annotations."""
    interjects: bool = False
    """It acts on a session or on a call in progress from outside (feeds it, interrupts it, forks, ends): a fork
    neither waits for it nor holds it up."""
    bind: Callable[[Mapping[str, object]], dict[str, object]]
    """Validates arguments into keywords for `invoke`; raises `ToolFailure(BAD_ARGUMENTS)`."""
    invoke: Callable[..., Awaitable[object]]
    """The code."""
    dump: Callable[[object], dict[str, object]]
    """Converts the return value of `invoke` to JSON values."""
    session_parameter: str | None = None
    """The keyword of `invoke` that takes the `Session`; `None` for a stateless tool."""
    context_parameter: str | None = None
    """The keyword of `invoke` that takes the `CallContext`."""
    called: str = ""
    """Its name on MCP, where it can't be made of family and verb."""
    unusable: str = ""
    """Why it can't work here and what mends it, in one line; empty: it can, as far as the settings tell."""
    limits: tuple[str, ...] = ()
    """What it can't do, a line each: for models that plan with it."""
    practices: tuple[str, ...] = ()
    """How it is best used, a line each."""
    examples: tuple[Mapping[str, object], ...] = ()
    """Arguments of good calls."""

    @property
    def name(self) -> str:
        """`<backend>_<verb>`: its name on MCP; also a valid name for OpenAI-style functions."""
        return self.called or f"{self.backend}_{self.verb}"

    @property
    def route(self) -> str:
        """`<backend>:<verb>`: its name in `Sandbox`."""
        return f"{self.backend}:{self.verb}"

    @property
    def stateful(self) -> bool:
        """It takes a session."""
        return self.session_parameter is not None

    def function(self) -> dict[str, object]:
        """The tool as an OpenAI-style function definition."""
        spec = {"name": self.name, "description": self.description, "parameters": self.input_schema}
        return {"type": "function", "function": spec}

    def prompt(self) -> str:
        """The tool as a few lines of text, for prompts of models without function calling."""
        properties = cast("dict[str, dict[str, object]]", self.input_schema.get("properties", {}))
        required = cast("list[str]", self.input_schema.get("required", []))
        lines = [f"{self.route} — {self.description}"]
        for argument, schema in properties.items():
            kind = schema.get("type", "any")
            need = "required" if argument in required else "optional"
            lines.append(f"  {argument} ({kind}, {need}): {schema.get('description', '')}".rstrip(": "))
        return "\n".join(lines)

    @classmethod
    def of(
        cls,
        function: Callable[..., Awaitable[object]],
        *,
        backend: str,
        verb: str | None = None,
        title: str | None = None,
        hints: Hints | None = None,
        interjects: bool = False,
        limits: Sequence[str] = (),
        practices: Sequence[str] = (),
        examples: Sequence[Mapping[str, object]] = (),
        signature: Signature | None = None,
    ) -> "Tool":
        """Define a tool by a typed async function (or bound method).

        Every argument needs a type and `Annotated[..., Field(description=...)]`; the docstring is the
        description; the return annotation gives the output schema, and a type that is no JSON object is
        wrapped as `{"result": ...}`. Parameters of type `Session` and `CallContext` are filled in by the
        table and are no arguments; with a `Session` the schema gets an optional `session` (the handle).
        """
        signature = signature or Signature.of(function)
        verb = verb or function.__name__
        for part in (backend, verb):
            if not _NAME.match(part):
                raise TypeError(f"{part!r} can't name a tool: use lower-case letters, digits and '_'")
        return cls(
            backend=backend,
            verb=verb,
            title=title or f"{backend} {verb}".replace("_", " ").capitalize(),
            description=signature.description,
            input_schema=signature.input_schema,
            output_schema=signature.output_schema,
            hints=hints or Hints(),
            interjects=interjects,
            bind=signature.binder(f"{backend}_{verb}"),
            invoke=function,
            dump=signature.dump,
            session_parameter=signature.session_parameter,
            context_parameter=signature.context_parameter,
            limits=tuple(limits),
            practices=tuple(practices),
            examples=tuple(examples),
        )


@dataclass(slots=True)
class _Mark:
    """What `@tool` leaves on a method; the signature is read once, however many backends are made."""

    verb: str | None
    title: str | None
    hints: Hints
    interjects: bool
    limits: Sequence[str]
    practices: Sequence[str]
    examples: Sequence[Mapping[str, object]]
    _signature: Signature | None = field(default=None, init=False)

    def signature(self, method: Callable[..., Awaitable[object]]) -> Signature:
        if self._signature is None:
            self._signature = Signature.of(method)
        return self._signature


def tool(
    *,
    read_only: bool = False,
    destructive: bool = True,
    idempotent: bool = False,
    open_world: bool = False,
    verb: str | None = None,
    title: str | None = None,
    interjects: bool = False,
    limits: Sequence[str] = (),
    practices: Sequence[str] = (),
    examples: Sequence[Mapping[str, object]] = (),
) -> Callable[[F], F]:
    """Make an async method of a `Backend` a tool. See `Tool.of` and `Hints`.

    :param verb: the tool's own name, where it can't be the method's (`fork`, `list`, …).
    :param limits: what it can't do, `practices`: how it is best used, `examples`: arguments of good calls. See `Tool`.
    """
    hints = Hints(
        read_only=read_only,
        destructive=destructive and not read_only,
        idempotent=idempotent or read_only,
        open_world=open_world,
    )

    def mark(method: F) -> F:
        setattr(method, _MARK, _Mark(verb, title, hints, interjects, limits, practices, examples))
        return method

    return mark


def tools_of(owner: object, backend: str) -> tuple[Tool, ...]:
    """The tools among the methods of `owner`, base classes first, in the order of their definition."""
    names = dict.fromkeys(name for kind in reversed(type(owner).__mro__) for name in vars(kind))
    found: list[Tool] = []
    for name in names:
        mark = getattr(getattr(type(owner), name, None), _MARK, None)
        if isinstance(mark, _Mark):
            method = getattr(owner, name)
            found.append(
                Tool.of(
                    method,
                    backend=backend,
                    verb=mark.verb or name,
                    title=mark.title,
                    hints=mark.hints,
                    interjects=mark.interjects,
                    limits=mark.limits,
                    practices=mark.practices,
                    examples=mark.examples,
                    signature=mark.signature(method),
                )
            )
    return tuple(found)
