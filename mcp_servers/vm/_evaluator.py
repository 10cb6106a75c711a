"""What a judge asks for: what to look at on the machine, and what to compare it with."""

from typing import Annotated, Any, Literal, Self, cast

from pydantic import AliasChoices, Discriminator, Field, Tag, model_validator

from agentflow.settings import Section
from mcp_servers.vm._steps import Command, Step

__all__ = [
    "AccessibilityNode",
    "CommandOutput",
    "Evaluator",
    "FileContent",
    "Func",
    "Getter",
    "Listing",
    "ProcessState",
    "Rule",
    "ScreenRegion",
    "WindowList",
    "WindowTitle",
    "WorkspaceFile",
]

Func = Literal[
    "exact_match",
    "fuzzy_match",
    "check_include_exclude",
    "is_in_list",
    "check_json",
    "compare_table",
    "compare_image",
    "infeasible",
]


class Rule(Section):
    """A value that is given, not looked for."""

    type: Literal["rule", "constant"]
    """`rule`."""
    rules: dict[str, Any] | list[Any] | str | bool | int | float | None = Field(
        validation_alias=AliasChoices("rules", "value")
    )
    """The value, or an object that holds it: `{expected: …}`, `{include: […], exclude: […]}`, `{expect: […]}`."""


class FileContent(Section):
    """A file on the machine."""

    type: Literal["vm_file", "file"]
    """`vm_file`."""
    path: str
    """Where it lies on the machine."""


class WorkspaceFile(Section):
    """A file of the session's workspace."""

    type: Literal["workspace_file"]
    """`workspace_file`."""
    path: str
    """Where it lies in the workspace."""


class Listing(Section):
    """The names of what is in a folder on the machine, one a line."""

    type: Literal["list_directory", "vm_directory"]
    """`list_directory`."""
    path: str
    """Where it lies."""


class CommandOutput(Section):
    """What a command on the machine prints."""

    type: Literal["vm_command_line", "command"]
    """`vm_command_line`."""
    command: Command
    """What to run: a line for the shell, or a program with its arguments. It must end with exit code 0."""
    shell: bool = False
    """Taken and ignored: a line is always for the shell."""


class ProcessState(Section):
    """Whether a program runs: `running` or `not running`."""

    type: Literal["vm_process", "process"]
    """`vm_process`."""
    name: str = Field(min_length=1)
    """Its name, without the folder."""


class WindowTitle(Section):
    """The title of the window that has the keyboard, or of an application's uppermost one; empty where there is none."""

    type: Literal["vm_window_title", "window"]
    """`vm_window_title`."""
    application: str | None = None
    """The class of the program, in any case."""


class WindowList(Section):
    """The titles of all windows, the uppermost last, one a line."""

    type: Literal["vm_window_list", "windows"]
    """`vm_window_list`."""


class AccessibilityNode(Section):
    """The accessibility tree: all of it, or the lines of nodes with this role and name."""

    type: Literal["accessibility_tree"]
    """`accessibility_tree`."""
    role: str | None = None
    """`push-button`, `text`, `dialog`, …"""
    name: str | None = None
    """What it is called."""


class ScreenRegion(Section):
    """A part of the screen, as a picture."""

    type: Literal["screen_region", "screenshot"]
    """`screen_region`."""
    x: int = Field(default=0, ge=0)
    """Its left edge."""
    y: int = Field(default=0, ge=0)
    """Its upper edge."""
    width: int | None = Field(default=None, gt=0)
    """Its width; without it to the right edge of the screen."""
    height: int | None = Field(default=None, gt=0)
    """Its height; without it to the lower edge of the screen."""


def _kind(value: object) -> str:
    if isinstance(value, dict):
        kind = str(cast("dict[str, object]", value).get("type"))
    else:
        kind = str(getattr(value, "type", None))
    return _CALLED.get(kind, kind)


_CALLED = {
    "constant": "rule",
    "file": "vm_file",
    "vm_directory": "list_directory",
    "command": "vm_command_line",
    "process": "vm_process",
    "window": "vm_window_title",
    "windows": "vm_window_list",
    "screenshot": "screen_region",
}
"""Other names of the getters."""

Getter = Annotated[
    Annotated[Rule, Tag("rule")]
    | Annotated[FileContent, Tag("vm_file")]
    | Annotated[WorkspaceFile, Tag("workspace_file")]
    | Annotated[Listing, Tag("list_directory")]
    | Annotated[CommandOutput, Tag("vm_command_line")]
    | Annotated[ProcessState, Tag("vm_process")]
    | Annotated[WindowTitle, Tag("vm_window_title")]
    | Annotated[WindowList, Tag("vm_window_list")]
    | Annotated[AccessibilityNode, Tag("accessibility_tree")]
    | Annotated[ScreenRegion, Tag("screen_region")],
    Discriminator(_kind),
]
"""Something to look at."""


class Evaluator(Section):
    """What to look at, and what to compare it with. With several comparisons each list has one entry for each."""

    func: Func | list[Func]
    """The comparison, or several."""
    result: Getter | list[Getter] | None = None
    """What to look at on the machine."""
    expected: Getter | list[Getter] | None = None
    """What it should be."""
    options: dict[str, Any] | list[dict[str, Any]] | None = None
    """Options of the comparison: `threshold`, `ignore_case`, `strip`, `tolerance`, `sheet`, …"""
    conj: Literal["and", "or"] = "and"
    """How several are put together."""
    postconfig: list[Step] = Field(default_factory=list[Step])
    """What is done on the machine first."""

    @model_validator(mode="after")
    def _as_many(self) -> Self:
        many = len(self.func) if isinstance(self.func, list) else 1
        for name in ("result", "expected", "options"):
            given: object = getattr(self, name)
            if isinstance(given, list):
                entries = len(cast("list[object]", given))
                if entries != many:
                    raise ValueError(f"`{name}` has {entries} entries, `func` {many}: give one for each")
            elif isinstance(self.func, list) and given is not None:
                raise ValueError(f"`func` is a list of {many}, so `{name}` must be one, too")
        return self

    def parts(self) -> list[tuple[Func, Getter | None, Getter | None, dict[str, Any]]]:
        """Each comparison with what belongs to it."""
        funcs: list[Func] = self.func if isinstance(self.func, list) else [self.func]
        results = self.result if isinstance(self.result, list) else [self.result] * len(funcs)
        expected = self.expected if isinstance(self.expected, list) else [self.expected] * len(funcs)
        options = self.options if isinstance(self.options, list) else [self.options or {}] * len(funcs)
        return list(zip(funcs, results, expected, options, strict=True))
