"""Environments for TRL: the tools of a sandbox as typed methods."""

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, Self, Union

from agentflow._typeguards import is_list, is_object
from agentflow.errors import ConfigurationError
from agentflow.sandbox import SyncSandbox
from mcp_servers import Backend, Tool

_TYPES: Final[Mapping[object, Any]] = {
    "array": list,
    "boolean": bool,
    "integer": int,
    "null": type(None),
    "number": float,
    "object": dict,
    "string": str,
}
_SCALARS: Final = (str, int, float, bool)


class SandboxEnvironments:
    """Environments for the `environment_factory` of TRL's `GRPOTrainer`, each with a sandbox of its own.

    ::

        with SandboxEnvironments(backends=["bash"], tools=["bash:run"]) as environments:
            GRPOTrainer(..., environment_factory=environments).train()

    Each tool is a method with types and a docstring, from which TRL writes the schema. `reset` gives the next episode a
    new session. A failed call is a result that says so. See docs/exports.md.
    """

    def __init__(
        self,
        target: str | None = None,
        *,
        token: str | None = None,
        backends: Sequence[str | Backend] | None = None,
        tools: str | Sequence[str] = "*",
        timeout: float | None = None,
    ) -> None:
        """Prepare environments; sandboxes start with the first.

        :param target: a server's URL or a settings file; by default the sandboxes are in this process.
        :param token: the server's bearer token.
        :param backends: backends of the sandboxes; by default all built-in ones.
        :param tools: names or patterns of the tools that the model may call.
        :param timeout: seconds for a call.
        """
        self._options: dict[str, Any] = {"token": token, "backends": backends, "timeout": timeout}
        self._target = target
        self._patterns = tools
        self._kind: type[_SandboxEnvironment] | None = None
        self._sessions: list[_EnvironmentSession] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __call__(self) -> object:
        """Return a new environment.

        :raises ConfigurationError: if no tool fits the patterns, or its schema can't be a signature.
        """
        session = _EnvironmentSession(lambda: SyncSandbox(self._target, **self._options))
        self._sessions.append(session)
        if self._kind is None:
            tools = [tool for tool in session.sandbox.tools(self._patterns) if not tool.unusable]
            if not tools:
                raise ConfigurationError(f"tools: no usable tool fits {self._patterns!r}")
            methods = {tool.name: tool_method(tool) for tool in tools}
            self._kind = type("SandboxEnvironment", (_SandboxEnvironment,), methods)
        return self._kind(session)

    def close(self) -> None:
        """Close all sandboxes."""
        while self._sessions:
            self._sessions.pop().sandbox.close()


class _EnvironmentSession:
    """Sandbox of an environment, renewed for each episode that follows a call."""

    def __init__(self, make: Callable[[], SyncSandbox]) -> None:
        self._make = make
        self._used = False
        self.sandbox = make()
        self.sandbox.start()

    def renew(self) -> None:
        if self._used:
            self.sandbox.close()
            self.sandbox = self._make()
            self.sandbox.start()
            self._used = False

    def call(self, tool: str, arguments: Mapping[str, object]) -> str:
        self._used = True
        return str(self.sandbox.execute(tool, arguments))


class _SandboxEnvironment:
    """Environment; its subclass has the tools. TRL takes every public method but `reset` for a tool."""

    def __init__(self, session: _EnvironmentSession) -> None:
        self.session = session

    def reset(self, **row: object) -> None:
        """Begin an episode in a new session."""
        del row
        self.session.renew()


def tool_method(tool: Tool) -> Callable[..., str]:
    """Return a method that calls a tool; its signature and docstring say what the schema says."""

    def call(self: _SandboxEnvironment, **arguments: object) -> str:
        return self.session.call(tool.route, arguments)

    properties = tool.input_schema.get("properties", {})
    required = tool.input_schema.get("required", [])
    if not is_object(properties) or not is_list(required):
        raise ConfigurationError(f"{tool.name}: its schema has no plain arguments; leave it out with tools=")
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    annotations: dict[str, Any] = {}
    lines: list[str] = []
    for name in sorted(properties, key=lambda name: name not in required):
        schema = _object(properties[name])
        annotations[name] = _annotation(schema)
        default = inspect.Parameter.empty if name in required else schema.get("default")
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, kind, default=default, annotation=annotations[name]))
        about = " ".join(str(schema.get("description") or name).split())
        lines.append(f"{name}: {about}")
    call.__name__ = tool.name
    call.__qualname__ = f"SandboxEnvironment.{tool.name}"
    call.__annotations__ = {**annotations, "return": str}
    setattr(call, "__signature__", inspect.Signature(parameters, return_annotation=str))  # noqa: B010 - not declared
    call.__doc__ = _docstring(tool.description, lines)
    return call


def _object(value: object) -> dict[str, Any]:
    return value if is_object(value) else {}


def _docstring(description: str, lines: Sequence[str]) -> str:
    """Return a docstring in the format of Google; lines that would begin a section of it get a full stop."""
    text = "\n".join(
        f"{line.rstrip()[:-1]}." if line.strip() in ("Args:", "Returns:", "Raises:") else line
        for line in description.strip().splitlines()
    )
    return f"{text}\n\nArgs:\n{textwrap.indent(chr(10).join(lines), '    ')}" if lines else text


def _annotation(schema: object) -> Any:  # noqa: ANN401 - a type of any kind
    """Return the type that a JSON schema describes, as far as annotations can; else `Any`."""
    if not is_object(schema):
        return Any
    if (
        is_list(choices := schema.get("enum"))
        and choices
        and all(isinstance(choice, _SCALARS) for choice in choices)
    ):
        return Literal[tuple(choices)]
    parts = schema.get("anyOf") or schema.get("oneOf")
    kind = schema.get("type")
    if is_list(kind):
        parts = [{**schema, "type": choice} for choice in kind]
    if is_list(parts) and parts:
        kinds = [_annotation(part) for part in parts]
        return Any if Any in kinds else Union[tuple(kinds)]  # noqa: UP007 - known only here
    if kind == "array" and "items" in schema:
        inner = _annotation(schema["items"])
        return list if inner is Any else list[inner]
    return _TYPES.get(kind, Any)
