"""Argument types and results of the browser tools."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from mcp_servers.core._call import Output

__all__ = [
    "Button",
    "ConsoleLines",
    "Dialog",
    "Downloaded",
    "Element",
    "Evaluated",
    "FilePath",
    "FormField",
    "Found",
    "Modifier",
    "OnlyElement",
    "PageState",
    "RequestDetails",
    "RequestLines",
    "Saved",
    "Shot",
    "TabInfo",
    "Target",
]

Element = Annotated[
    str | None, Field(description="What the element is, in words, for people who read along.")
]
Target = Annotated[
    str,
    Field(
        min_length=1, description="The element: its ref in the last snapshot, such as `e12`, or a selector."
    ),
]
OnlyElement = Annotated[
    str | None, Field(min_length=1, description="Only this element: its ref or a selector.")
]
FilePath = Annotated[
    str | None,
    Field(min_length=1, description="Save the result to this file of the workspace instead of returning it."),
]
Button = Literal["left", "right", "middle"]
Modifier = Literal["Alt", "Control", "ControlOrMeta", "Meta", "Shift"]


class FormField(BaseModel):
    """One field of a form."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    element: str | None = None
    """What the field is, in words."""
    target: str
    """The field: its ref in the last snapshot, or a selector."""
    name: str
    """A name of the field for people."""
    type: Literal["textbox", "checkbox", "radio", "combobox", "slider"]
    """The kind of field."""
    value: str
    """What to fill in: `true` or `false` for a checkbox, the text of an option for a combobox."""


class TabInfo(Output):
    """One open tab."""

    index: int
    """What `browser_tabs` names it by."""
    title: str
    """Its title."""
    url: str
    """Its address."""
    current: bool
    """The tools act on it."""


class Dialog(Output):
    """A dialog that holds up the page until it is answered."""

    type: str
    """`alert`, `confirm`, `prompt` or `beforeunload`."""
    message: str
    """What it says."""
    default: str
    """What a prompt suggests."""


class Downloaded(Output):
    """A file that the page had the browser download."""

    name: str
    """What the page calls it."""
    url: str
    """Where it came from."""
    path: str | None
    """Where it lies in the workspace; `null` if it could not be had."""
    size: int | None
    """Bytes."""
    error: str | None
    """Why it could not be had."""


class PageState(Output):
    """The page after an action."""

    url: str
    """Address of the page."""
    title: str
    """Its title."""
    snapshot: str | None
    """What can be seen and used on it, as an indented list; `[ref=e12]` is what other tools take as `target`."""
    tabs: list[TabInfo]
    """All tabs, where there is more than one."""
    dialog: Dialog | None
    """A dialog that holds up the page: `browser_handle_dialog` answers it, nothing else goes on before."""
    file_chooser: bool
    """The page waits for files: `browser_file_upload` gives them."""
    downloads: list[Downloaded]
    """Files that were downloaded meanwhile."""
    console: list[str]
    """Errors that the page reported meanwhile."""
    note: str
    """What else there is to know, such as a tab that was opened; often empty."""


class Evaluated(PageState):
    """The page, and what the script returned."""

    value: str
    """What the function returned, as JSON."""


class Shot(PageState):
    """The page, of which a picture is shown."""

    path: str | None
    """Where the picture lies in the workspace, if a file was asked for."""


class Saved(Output):
    """A file that was made."""

    path: str
    """Where it lies in the workspace."""
    size: int
    """Bytes."""


class Found(Output):
    """Parts of the snapshot."""

    matches: int
    """How many lines of the snapshot match."""
    text: str
    """The matching lines with those around them, each below its path from the root of the page."""
    path: str | None
    """Where the result lies in the workspace, if a file was asked for."""


class ConsoleLines(Output):
    """Messages of the console."""

    messages: list[str]
    """`[level] text @ source:line`, the oldest first."""
    left_out: int
    """How many more there were: less severe, forgotten, or too many to show."""
    path: str | None
    """Where they lie in the workspace, if a file was asked for."""


class RequestLines(Output):
    """Requests of the page."""

    requests: list[str]
    """`number. [METHOD] url => status`, the oldest first; `browser_network_request` takes the number."""
    left_out: int
    """How many more there were: of static resources, forgotten, or too many to show."""
    path: str | None
    """Where they lie in the workspace, if a file was asked for."""


class RequestDetails(Output):
    """One request with its response."""

    method: str
    """The method."""
    url: str
    """The address."""
    status: int | None
    """The response's status; `null` if there is none."""
    text: str
    """The part that was asked for, or all: headers and bodies."""
    path: str | None
    """Where it lies in the workspace, if a file was asked for."""
