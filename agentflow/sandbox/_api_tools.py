"""Functions as tools."""

import inspect
import re
import typing
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin, overload

import anyio
from pydantic import Field
from pydantic.fields import FieldInfo

from agentflow.errors import ConfigurationError
from mcp_servers import BACKENDS, Backend, CallContext, Tool
from mcp_servers.core import Hints

F = TypeVar("F", bound=Callable[..., object])

DEFAULT_FAMILY: Final = "api"
"""Backend of functions registered without a family."""

_DESCRIBED: Final = re.compile(r"^\s*(?::param\s+)?(\w+)\s*(?:\([^)]*\))?\s*:\s*(\S.*)$", re.MULTILINE)
"""`:param city: ...`, `city: ...` or `city (str): ...` in a docstring."""


@dataclass(frozen=True, slots=True)
class ApiTool:
    """A registered function."""

    tool: Tool
    """Creates its tool; called without settings."""
    function: Callable[..., object]
    """The function."""
    config_key: str
    """Key of the settings' `apis` that a function with `**settings` receives as keywords."""

    def configured(self, config: Mapping[str, object]) -> Tool:
        """Return the tool with its settings bound."""
        if _settings_parameter(self.function) is None:
            return self.tool
        return replace(self.tool, invoke=_invoker(partial(self.function, **config)))


def _settings_parameter(function: Callable[..., object]) -> str | None:
    parameters = inspect.signature(function).parameters.values()
    return next(
        (parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.VAR_KEYWORD), None
    )


def _invoker(function: Callable[..., object]) -> Callable[..., Awaitable[object]]:
    """Return the function as an async one; a plain one runs in a thread, so it may block."""
    if inspect.iscoroutinefunction(function):
        return function

    async def invoke(**arguments: object) -> object:
        return await anyio.to_thread.run_sync(partial(function, **arguments), abandon_on_cancel=True)

    return invoke


def _described(function: Callable[..., object], description: str | None) -> Callable[..., Awaitable[object]]:
    """Return an async function with the same signature and a description of every argument."""
    text = inspect.getdoc(function) or ""
    descriptions = dict(_DESCRIBED.findall(text))
    signature = inspect.signature(function)
    parameters = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    hints = typing.get_type_hints(function, include_extras=True)
    for name in (parameter.name for parameter in parameters):
        hint = hints.get(name, Any)
        hints[name] = hint if hint is CallContext else _with_description(hint, descriptions.get(name), name)
    call = _invoker(function)

    async def invoke(**arguments: object) -> object:
        return await call(**arguments)

    invoke.__doc__ = description or text.split(":param")[0].split("Args:")[0].strip()
    invoke.__qualname__ = getattr(function, "__qualname__", repr(function))
    invoke.__annotations__ = hints
    vars(invoke)["__signature__"] = signature.replace(parameters=parameters)
    return invoke


def _with_description(hint: Any, description: str | None, name: str) -> object:  # noqa: ANN401 - any type form
    """Annotate a type with a description: its own, the docstring's, or the argument's name in words."""
    extras = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    if any(isinstance(extra, FieldInfo) and extra.description for extra in extras):
        return hint
    text = next((extra for extra in extras if isinstance(extra, str)), description)
    return Annotated[hint, Field(description=text or name.replace("_", " "))]


class ApiBackend(Backend):
    """Backend of the registered functions of one family."""

    def __init__(self, family: str, tools: tuple[Tool, ...]) -> None:
        self.name = family
        self.description = f"Functions registered as {family} tools."
        self._tools = tools

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Its tools."""
        return self._tools


registered_tools: dict[str, ApiTool] = {}
"""All registered functions, by the route of their tools."""


@overload
def register_api_tool(name: F) -> F: ...
@overload
def register_api_tool(
    name: str | None = None,
    *,
    description: str | None = None,
    config_key: str | None = None,
    read_only: bool = False,
    open_world: bool = True,
) -> Callable[[F], F]: ...
def register_api_tool(
    name: F | str | None = None,
    *,
    description: str | None = None,
    config_key: str | None = None,
    read_only: bool = False,
    open_world: bool = True,
) -> F | Callable[[F], F]:
    """Make a function, plain or async, a tool of every in-process sandbox created afterwards.

    See docs/sandbox.md for an example.

    :param name: `family:verb`; without a family it is `api:verb`; without a name the function's own.
    :param description: tells a model when to use it; by default the docstring.
    :param config_key: key of the settings' `apis` that a function with `**settings` receives; by default its family.
    :param read_only: the tool changes nothing.
    :param open_world: the tool reaches things outside the sandbox.
    :raises TypeError: if an argument has no type, or the tool has no description.
    :raises ConfigurationError: if the family is the name of a backend.

    The signature gives the schema. The function runs in this process, not in the sandbox: a plain one runs in a
    thread, so it may block.
    """

    def register(function: F) -> F:
        route = name if isinstance(name, str) else function.__name__
        family, _, verb = route.rpartition(":")
        family = family or DEFAULT_FAMILY
        if family in BACKENDS:
            message = (
                f"register_api_tool: {family!r} is a backend of its own: choose another family for {verb!r}"
            )
            raise ConfigurationError(message)
        hints = Hints(read_only=read_only, destructive=False, idempotent=read_only, open_world=open_world)
        tool = Tool.of(_described(function, description), backend=family, verb=verb, hints=hints)
        registered_tools[tool.route] = ApiTool(tool, function, config_key or family)
        return function

    return register(name) if callable(name) else register


def api_backends(settings: Mapping[str, Mapping[str, object]]) -> list[ApiBackend]:
    """Return a backend for each family of registered functions.

    :param settings: settings by `config_key`.
    :raises ConfigurationError: for settings that no function uses.
    """
    unused = settings.keys() - {registered.config_key for registered in registered_tools.values()}
    if unused:
        raise ConfigurationError(f"apis: no registered function asks for {min(unused)!r}")
    families: dict[str, list[Tool]] = {}
    for registered in registered_tools.values():
        families.setdefault(registered.tool.backend, []).append(
            registered.configured(settings.get(registered.config_key, {}))
        )
    return [ApiBackend(family, tuple(tools)) for family, tools in families.items()]
