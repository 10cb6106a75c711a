"""Tools, defined once by a typed signature that provides schema, validation, route and prompt text."""

import inspect
import re
import typing
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.fields import FieldInfo

from agentflow._typeguards import is_list, is_mapping, is_object
from agentflow.errors import ConfigurationError, ErrorKind, ToolFailure
from mcp_servers.core._call import CallContext
from mcp_servers.core._failures import did_you_mean, one_line, quoted
from mcp_servers.core._sessions import Session

Arguments: TypeAlias = Mapping[str, object]
Binder: TypeAlias = Callable[[Arguments], dict[str, object]]
Dump: TypeAlias = Callable[[object], dict[str, object]]

SESSION_ARGUMENT = "session"
"""The tool argument that holds a session's handle."""

SESSION_SCHEMA: dict[str, object] = {
    "type": "string",
    "description": "Handle of the session to work in, from session_start or session_fork. "
    "Leave it out to work in the connection's own session.",
}
"""Schema of that argument."""

REQUIRED_SESSION_SCHEMA: dict[str, object] = {
    "type": "string",
    "description": "Handle of the session to work in, from session_start or session_fork. "
    "This connection has no session of its own: call session_start first.",
}
"""Schema of that argument where every call must name a session."""

MAX_PROBLEMS = 5
"""Problems with arguments that an error message describes; it counts the others."""

_NAMED = ("properties", "$defs")
"""Keywords whose members are user-defined names, so that `title` among them is not a keyword."""

_ANY = ("string", "number", "boolean", "object", "array", "null")
"""All JSON types. Spelt out, because some clients reject an empty schema."""

CARD_KEY: Final = "agentflow/card"
"""Key in the `_meta` of a listed tool that holds its limits, practices and examples."""

UNUSABLE_KEY: Final = "agentflow/unusable"
"""Key in the `_meta` of a listed tool that holds the reason why it cannot work on this server."""

F = TypeVar("F", bound=Callable[..., Awaitable[object]])

_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
_MARK = "__agentflow_tool__"


@dataclass(frozen=True, slots=True)
class Signature:
    """The signature of a tool's function, independent of the backend instance."""

    description: str
    """The docstring."""
    input_schema: dict[str, object]
    """JSON schema of the arguments."""
    output_schema: dict[str, object]
    """JSON schema of the dumped result; always of an object."""
    model: type[BaseModel]
    """Validates the arguments."""
    dump: Dump
    """Converts a result to JSON values."""
    session_parameter: str | None
    """The parameter that takes the `Session`."""
    context_parameter: str | None
    """The parameter that takes the `CallContext`."""

    @classmethod
    def of(cls, function: Callable[..., object]) -> "Signature":
        """Read the signature of an async function or bound method.

        :raises TypeError: if an argument has no type or description, or the function has no docstring.
        """
        where = getattr(function, "__qualname__", repr(function))
        description = inspect.getdoc(function)
        if not description:
            raise TypeError(f"{where}: a tool needs a docstring that describes its use to a model")
        hints = typing.get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters
        session_parameter = _parameter_of(Session, parameters, hints)
        context_parameter = _parameter_of(CallContext, parameters, hints)
        fields: dict[str, typing.Any] = {
            name: _field(where, parameter, hints)
            for name, parameter in parameters.items()
            if name not in (session_parameter, context_parameter)
        }
        model = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)
        input_schema = portable(model.model_json_schema())
        if session_parameter is not None:
            properties = as_object(input_schema.setdefault("properties", {}))
            properties[SESSION_ARGUMENT] = SESSION_SCHEMA
        output_schema, dump = _result(hints)
        return cls(
            description, input_schema, output_schema, model, dump, session_parameter, context_parameter
        )

    def binder(self, tool: str) -> Binder:
        """Return a validator for the arguments of the tool with that name."""
        validate = self.model.__pydantic_validator__.validate_python
        argument_names = [*self.model.model_fields, *([SESSION_ARGUMENT] if self.session_parameter else [])]

        parameters = self.model.model_fields.keys()

        def bind(arguments: Arguments) -> dict[str, object]:
            extra = max(len(arguments) - len(parameters) - MAX_PROBLEMS, 0)
            try:
                # Each unknown argument costs the validator more than the parser: pass on a few of many.
                return validate(_some(arguments, parameters) if extra else arguments).__dict__
            except ValidationError as error:
                raise ToolFailure(
                    ErrorKind.BAD_ARGUMENTS, f"{tool}: {_explain(error, argument_names, extra)}"
                ) from None

        return bind


def _parameter_of(kind: type, parameters: Mapping[str, object], hints: Mapping[str, object]) -> str | None:
    return next((name for name in parameters if hints.get(name) is kind), None)


def _field(where: str, parameter: inspect.Parameter, hints: Mapping[str, object]) -> tuple[object, object]:
    """Return one argument in the form of pydantic's `create_model`."""
    hint = hints.get(parameter.name)
    described = [
        part for part in typing.get_args(hint)[1:] if isinstance(part, FieldInfo) and part.description
    ]
    if typing.get_origin(hint) is not typing.Annotated or not described:
        raise TypeError(f"{where}: argument {parameter.name!r} needs Annotated[..., Field(description=...)]")
    if parameter.default is inspect.Parameter.empty:
        return hint, ...
    return hint, Field(default=parameter.default)


def _result(hints: Mapping[str, typing.Any]) -> tuple[dict[str, object], Dump]:
    """Return the output schema and the serializer of a return annotation."""
    hint = hints.get("return", dict[str, object])
    adapter = TypeAdapter[object](hint)
    schema = portable(adapter.json_schema(mode="serialization"), keep_null=True)
    if schema.get("type") != "object":
        wrapped: dict[str, object] = {
            "type": "object",
            "properties": {"result": schema},
            "required": ["result"],
        }
        definitions = schema.pop("$defs", None)
        if definitions is not None:
            wrapped["$defs"] = definitions
        return wrapped, lambda value: {"result": adapter.dump_python(value, mode="json")}
    if hint == dict[str, object]:
        return schema, as_object
    return schema, lambda value: as_object(adapter.dump_python(value, mode="json"))


def with_required_session(
    schema: Mapping[str, object], annotations: Mapping[str, object]
) -> dict[str, object]:
    """Return the input schema of a stateful tool with a required `session`.

    :param annotations: further members of the schema of `session`.
    """
    properties, required = schema.get("properties", {}), schema.get("required", [])
    assert is_mapping(properties)
    assert is_list(required)
    return {
        **schema,
        "properties": {**properties, SESSION_ARGUMENT: {**REQUIRED_SESSION_SCHEMA, **annotations}},
        "required": [*required, SESSION_ARGUMENT],
    }


def as_object(value: object) -> dict[str, object]:
    """Return the value, which must be a JSON object."""
    assert is_object(value)
    return value


def _some(arguments: Arguments, parameters: Collection[str]) -> Arguments:
    """Return the known arguments and some of the unknown ones."""
    unknown = ((name, value) for name, value in arguments.items() if name not in parameters)
    present = {name: arguments[name] for name in parameters if name in arguments}
    # Every known argument that is missing leaves room for an unknown one.
    return {**present, **dict(islice(unknown, len(parameters) + MAX_PROBLEMS - len(present)))}


def _explain(error: ValidationError, argument_names: list[str], extra: int) -> str:
    """Describe the first argument errors in one line, and count the others.

    :param extra: unknown arguments that were not passed to the validator.
    """
    problems: list[str] = []
    details = error.errors(include_url=False, include_context=False, include_input=False)
    for detail in details[:MAX_PROBLEMS]:
        path = ".".join(str(step) for step in detail["loc"])
        if detail["type"] == "extra_forbidden" and len(detail["loc"]) == 1:
            problems.append(f"unknown argument {quoted(path)}.{did_you_mean(path, argument_names)}")
        elif detail["type"] == "missing":
            problems.append(f"argument {quoted(path)} is missing.")
        elif path:
            problems.append(f"argument {quoted(path)}: {one_line(detail['msg'])}.")
        else:
            problems.append("arguments must be an object.")
    more = len(details) - len(problems) + extra
    return " ".join([*problems, *([f"And {more} more problems."] if more else [])])


def portable(schema: Mapping[str, object], *, keep_null: bool = False) -> dict[str, object]:
    """Return the schema without generated titles and with optional `X | None = None` arguments as plain optional `X`.

    :param keep_null: keep `null`, for output schemas in which it occurs as a value.
    """
    plain: dict[str, object] = {}
    for key, value in schema.items():
        if key == "title":
            continue
        if key in _NAMED and is_mapping(value):
            plain[key] = {name: _portable_value(member, keep_null) for name, member in value.items()}
        elif key in ("default", "const", "enum", "examples"):
            plain[key] = value
        elif key == "items" and value == {}:
            plain[key] = {"anyOf": [{"type": kind} for kind in _ANY]}
        else:
            plain[key] = _portable_value(value, keep_null)
    return plain if keep_null else _without_null(plain)


def _portable_value(value: object, keep_null: bool) -> object:
    if is_mapping(value):
        return portable(value, keep_null=keep_null)
    if is_list(value):
        return [_portable_value(member, keep_null) for member in value]
    return value


def _without_null(schema: dict[str, object]) -> dict[str, object]:
    choices = schema.get("anyOf")
    if "default" not in schema or schema["default"] is not None or not is_list(choices):
        return schema
    rest = [choice for choice in choices if choice != {"type": "null"}]
    outer = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
    if len(rest) == 1 and is_mapping(rest[0]):
        return {**rest[0], **outer}
    return {"anyOf": rest, **outer}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """Annotations by which a client can judge a tool before calling it."""

    read_only: bool = False
    """It changes nothing."""
    destructive: bool = True
    """It may delete or overwrite something."""
    idempotent: bool = False
    """Repeating a call with the same arguments has no further effect."""
    open_world: bool = False
    """It reaches systems outside the sandbox."""

    @property
    def changes_world(self) -> bool:
        """True if the tool may change something that outlives the sandbox."""
        return self.open_world and not self.read_only


class _ArgumentSchema(msgspec.Struct):
    type: object = "any"
    description: object = ""


class _ArgumentsSchema(msgspec.Struct):
    properties: dict[str, _ArgumentSchema] = {}
    required: list[str] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool of a backend, bound to it and ready to be called.

    `Tool.of` creates one from a typed async function; a backend that gets its schemas from elsewhere fills in the fields.
    """

    backend: str
    """Name of its backend."""
    verb: str
    """Name within the backend."""
    title: str
    """A name for people."""
    description: str
    """Purpose and use, written for a model."""
    input_schema: dict[str, object]
    """JSON schema of the arguments."""
    output_schema: dict[str, object] | None
    """JSON schema of the result's data."""
    hints: Hints
    """The four annotations."""
    interjects: bool = False
    """It acts on a session or a running call from outside (sends input, interrupts, forks, ends): it does not wait for
    a fork, and a fork does not wait for it.
    """
    bind: Callable[[Mapping[str, object]], dict[str, object]]
    """Validates arguments into keywords for `invoke`; raises `ToolFailure(BAD_ARGUMENTS)`."""
    invoke: Callable[..., Awaitable[object]]
    """The implementation."""
    dump: Callable[[object], dict[str, object]]
    """Converts the return value of `invoke` to JSON values."""
    session_parameter: str | None = None
    """The keyword of `invoke` that takes the `Session`; `None` for a stateless tool."""
    context_parameter: str | None = None
    """The keyword of `invoke` that takes the `CallContext`."""
    called: str = ""
    """MCP name if it cannot be built from backend and verb."""
    unusable: str = ""
    """Reason that it cannot work here, and the fix, in one line; empty if the settings show none."""
    limits: tuple[str, ...] = ()
    """Limitations, one line each, for models that plan with it."""
    practices: tuple[str, ...] = ()
    """Recommended use, one line each."""
    examples: tuple[Mapping[str, object], ...] = ()
    """Arguments of example calls."""

    @property
    def name(self) -> str:
        """`<backend>_<verb>`: the name on MCP, also valid for OpenAI-style functions."""
        return self.called or f"{self.backend}_{self.verb}"

    @property
    def route(self) -> str:
        """`<backend>:<verb>`: the name in `Sandbox`."""
        return f"{self.backend}:{self.verb}"

    @property
    def stateful(self) -> bool:
        """True if the tool takes a session."""
        return self.session_parameter is not None

    def function(self) -> dict[str, object]:
        """Return the tool as an OpenAI-style function definition."""
        spec = {"name": self.name, "description": self.description, "parameters": self.input_schema}
        return {"type": "function", "function": spec}

    def prompt(self) -> str:
        """Return the tool as a few lines of text, for prompts of models without function calling."""
        schema = msgspec.convert(self.input_schema, _ArgumentsSchema)
        lines = [f"{self.route} — {self.description}"]
        for name, argument in schema.properties.items():
            need = "required" if name in schema.required else "optional"
            lines.append(f"  {name} ({argument.type}, {need}): {argument.description}".rstrip(": "))
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

        Every argument needs a type and `Annotated[..., Field(description=...)]`; the docstring is the description; the return
        annotation gives the output schema, and a type that is not a JSON object is wrapped as `{"result": ...}`. Parameters
        of type `Session` and `CallContext` are filled in by the table and are not arguments; with a `Session` the schema
        gets an optional `session` (the handle), which servers require over HTTP.
        """
        signature = signature or Signature.of(function)
        verb = verb or function.__name__
        for part in (backend, verb):
            if not _NAME.match(part):
                raise TypeError(f"{part!r} is not a valid tool name: use lower-case letters, digits and '_'")
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
class _ToolMark:
    """The mark that `@tool` leaves on a method; the signature is read once for all instances of the backend."""

    define: Callable[..., Tool]
    signature: Signature | None = None


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
    """Mark an async method of a `Backend` as a tool. See `Tool.of` and `Hints`.

    :param verb: name of the tool if it cannot be the method's (`fork`, `list`, …).
    :param limits: limitations; `practices`: recommended use; `examples`: arguments of example calls. See `Tool`.

    Example::

        @tool(read_only=True)
        async def now(self) -> str: ...
    """
    define = partial(
        Tool.of,
        verb=verb,
        title=title,
        hints=Hints(
            read_only=read_only,
            destructive=destructive and not read_only,
            idempotent=idempotent or read_only,
            open_world=open_world,
        ),
        interjects=interjects,
        limits=limits,
        practices=practices,
        examples=examples,
    )

    def mark(method: F) -> F:
        setattr(method, _MARK, _ToolMark(define))
        return method

    return mark


def tools_of(owner: object, backend: str, cards: Path | None = None) -> tuple[Tool, ...]:
    """Return the tools among the methods of `owner`, base classes first, in definition order.

    :param cards: TOML file with `limits` and `practices` by verb, for tools that declare none.
    """
    cards_by_verb = {} if cards is None else _read_cards(cards)
    names = dict.fromkeys(name for kind in reversed(type(owner).__mro__) for name in vars(kind))
    tools: list[Tool] = []
    for name in names:
        mark = getattr(getattr(type(owner), name, None), _MARK, None)
        if isinstance(mark, _ToolMark):
            method = getattr(owner, name)
            mark.signature = mark.signature or Signature.of(method)
            definition = mark.define(method, backend=backend, signature=mark.signature)
            card = cards_by_verb.get(definition.verb, _Card())
            limits, practices = definition.limits or card.limits, definition.practices or card.practices
            tools.append(replace(definition, limits=limits, practices=practices))
    return tuple(tools)


class _Card(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limits: tuple[str, ...] = ()
    practices: tuple[str, ...] = ()


@cache
def _read_cards(path: Path) -> dict[str, _Card]:
    try:
        return msgspec.toml.decode(path.read_bytes(), type=dict[str, _Card])
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigurationError(f"{path}: {error}") from None
