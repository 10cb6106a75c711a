"""Schema of an evaluation: getters on the machine, and comparisons."""

from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, Discriminator, Field, Tag, model_validator

from agentflow._typeguards import is_list, is_object
from agentflow.settings import Section
from mcp_servers.vm._steps import Command, Step

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
    """Given value."""

    type: Literal["rule", "constant"]
    """`rule`."""
    rules: dict[str, Any] | list[Any] | str | bool | int | float | None = Field(
        validation_alias=AliasChoices("rules", "value")
    )
    """The value, or an object with it: `{expected: …}`, `{include: […], exclude: […]}`, `{expect: […]}`."""


class FileContent(Section):
    """File on the machine."""

    type: Literal["vm_file", "file"]
    """`vm_file`."""
    path: str
    """Path on the machine."""


class WorkspaceFile(Section):
    """File of the session's workspace."""

    type: Literal["workspace_file"]
    """`workspace_file`."""
    path: str
    """Path in the workspace."""


class MachineDirectoryListing(Section):
    """Names of a directory's entries on the machine, one a line."""

    type: Literal["list_directory", "vm_directory"]
    """`list_directory`."""
    path: str
    """Path on the machine."""


class CommandOutput(Section):
    """Output of a command on the machine."""

    type: Literal["vm_command_line", "command"]
    """`vm_command_line`."""
    command: Command
    """Shell line, or a program with its arguments. Its exit code must be 0."""
    shell: bool = False
    """Accepted for compatibility and ignored: a line always goes to the shell."""


class ProcessState(Section):
    """State of a program: `running` or `not running`."""

    type: Literal["vm_process", "process"]
    """`vm_process`."""
    name: str = Field(min_length=1)
    """Program name, without the directory."""


class WindowTitle(Section):
    """Title of the focused window, or of an application's topmost one; empty if there is none."""

    type: Literal["vm_window_title", "window"]
    """`vm_window_title`."""
    application: str | None = None
    """Window class of the program, case-insensitive."""


class WindowList(Section):
    """Titles of all windows, topmost last, one a line."""

    type: Literal["vm_window_list", "windows"]
    """`vm_window_list`."""


class AccessibilityNode(Section):
    """Accessibility tree: all of it, or the lines of nodes with this role and name."""

    type: Literal["accessibility_tree"]
    """`accessibility_tree`."""
    role: str | None = None
    """`push-button`, `text`, `dialog`, …"""
    name: str | None = None
    """Name of the node."""


class ScreenRegion(Section):
    """Part of the screen, as a picture."""

    type: Literal["screen_region", "screenshot"]
    """`screen_region`."""
    x: int = Field(default=0, ge=0)
    """Left edge."""
    y: int = Field(default=0, ge=0)
    """Top edge."""
    width: int | None = Field(default=None, gt=0)
    """Width; the default extends to the right edge of the screen."""
    height: int | None = Field(default=None, gt=0)
    """Height; the default extends to the bottom edge of the screen."""


def _kind(value: object) -> str:
    kind = str(value.get("type") if is_object(value) else getattr(value, "type", None))
    return _GETTER_ALIASES.get(kind, kind)


_GETTER_ALIASES = {
    "constant": "rule",
    "file": "vm_file",
    "vm_directory": "list_directory",
    "command": "vm_command_line",
    "process": "vm_process",
    "window": "vm_window_title",
    "windows": "vm_window_list",
    "screenshot": "screen_region",
}
"""Aliases of the getters."""

Getter = Annotated[
    Annotated[Rule, Tag("rule")]
    | Annotated[FileContent, Tag("vm_file")]
    | Annotated[WorkspaceFile, Tag("workspace_file")]
    | Annotated[MachineDirectoryListing, Tag("list_directory")]
    | Annotated[CommandOutput, Tag("vm_command_line")]
    | Annotated[ProcessState, Tag("vm_process")]
    | Annotated[WindowTitle, Tag("vm_window_title")]
    | Annotated[WindowList, Tag("vm_window_list")]
    | Annotated[AccessibilityNode, Tag("accessibility_tree")]
    | Annotated[ScreenRegion, Tag("screen_region")],
    Discriminator(_kind),
]
"""Getter: a value to read."""


class Evaluation(Section):
    """Evaluation: getters and comparisons. With several comparisons each list has one entry for each."""

    func: Func | list[Func]
    """Comparison, or several."""
    result: Getter | list[Getter] | None = None
    """Getter of the actual value."""
    expected: Getter | list[Getter] | None = None
    """Expected value."""
    options: dict[str, Any] | list[dict[str, Any]] | None = None
    """Options of the comparison: `threshold`, `ignore_case`, `strip`, `tolerance`, `sheet`, …"""
    conj: Literal["and", "or"] = "and"
    """Combination of several comparisons."""
    postconfig: list[Step] = Field(default_factory=list[Step])
    """Steps to run on the machine first."""

    @model_validator(mode="after")
    def _as_many(self) -> Self:
        many = len(self.func) if isinstance(self.func, list) else 1
        for name in ("result", "expected", "options"):
            given: object = getattr(self, name)
            if is_list(given):
                if len(given) != many:
                    raise ValueError(f"`{name}` has {len(given)} entries, `func` {many}: give one for each")
            elif isinstance(self.func, list) and given is not None:
                raise ValueError(f"`func` is a list of {many}, so `{name}` must be one, too")
        return self

    def parts(self) -> list[tuple[Func, Getter | None, Getter | None, dict[str, Any]]]:
        """Return each comparison with its getter, expected value and options."""
        funcs: list[Func] = self.func if isinstance(self.func, list) else [self.func]
        results = self.result if isinstance(self.result, list) else [self.result] * len(funcs)
        expected = self.expected if isinstance(self.expected, list) else [self.expected] * len(funcs)
        options = self.options if isinstance(self.options, list) else [self.options or {}] * len(funcs)
        return list(zip(funcs, results, expected, options, strict=True))
