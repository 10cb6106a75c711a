"""Argument types and results of the browser tools."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from mcp_servers.core._call import Output

Element = Annotated[
    str | None, Field(description="A short description of the element, for people who read the log.")
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
    Field(min_length=1, description="Save the result to this file in the workspace instead of returning it."),
]
Button = Literal["left", "right", "middle"]
Modifier = Literal["Alt", "Control", "ControlOrMeta", "Meta", "Shift"]


MAX_TITLE_CHARS = 500
"""Longest title of a page, or name of a file, in a result."""
MAX_URL_CHARS = 2_000
"""Longest address of a page in a result or message."""


class FormField(BaseModel):
    """One field of a form."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    element: str | None = None
    """A short description of the field."""
    target: str
    """The field: its ref in the last snapshot, or a selector."""
    name: str
    """A readable name of the field."""
    type: Literal["textbox", "checkbox", "radio", "combobox", "slider"]
    """The kind of field."""
    value: str
    """The value: `true` or `false` for a checkbox, the text of an option for a combobox."""


class TabInfo(Output):
    """One open tab."""

    index: int
    """Index of the tab, as `browser_tabs` takes it."""
    title: str
    """Its title."""
    url: str
    """Address of the page."""
    current: bool
    """The tools act on this tab."""


class Dialog(Output):
    """A dialog that blocks the page until it is answered."""

    type: str
    """`alert`, `confirm`, `prompt` or `beforeunload`."""
    message: str
    """Message of the dialog."""
    default: str
    """Default text of a prompt."""


class DownloadInfo(Output):
    """A file that the page downloaded."""

    name: str
    """File name suggested by the page."""
    url: str
    """Address of the file."""
    path: str | None
    """Path in the workspace; `null` if the download failed."""
    size: int | None
    """Bytes."""
    error: str | None
    """Reason of a failed download."""


class PageState(Output):
    """The page after an action."""

    url: str
    """Address of the page."""
    title: str
    """Its title."""
    snapshot: str | None
    """Accessible content of the page as an indented list; other tools take the `e12` of `[ref=e12]` as `target`."""
    tabs: list[TabInfo]
    """All tabs, if there is more than one."""
    dialog: Dialog | None
    """An open dialog: answer it with `browser_handle_dialog` before anything else."""
    file_chooser: bool
    """The page waits for files: give them with `browser_file_upload`."""
    downloads: list[DownloadInfo]
    """Files that were downloaded since the last result."""
    console: list[str]
    """Errors that the page reported since the last result."""
    note: str
    """Other events, such as a tab that the page opened; often empty."""


class ScriptResult(PageState):
    """State of the page and result of the script."""

    value: str
    """Value that the function returned, as JSON."""


class ScreenshotResult(PageState):
    """State of the page of which a screenshot is shown."""

    path: str | None
    """Path of the picture in the workspace, if a file was requested."""


class SavedFile(Output):
    """A saved file."""

    path: str
    """Path in the workspace."""
    size: int
    """Bytes."""


class SnapshotMatches(Output):
    """Matching parts of the snapshot."""

    matches: int
    """Number of matching lines."""
    text: str
    """Matching lines with the lines around them, each below its path from the root of the page."""
    path: str | None
    """Path of the result in the workspace, if a file was requested."""


class ConsoleLines(Output):
    """Messages of the console."""

    messages: list[str]
    """`[level] text @ source:line`, oldest first."""
    left_out: int
    """Number of messages not shown: less severe, dropped, or beyond the limit."""
    path: str | None
    """Path of the result in the workspace, if a file was requested."""


class RequestLines(Output):
    """Requests of the page."""

    requests: list[str]
    """`number. [METHOD] url => status`, oldest first; `browser_network_request` takes the number."""
    left_out: int
    """Number of requests not shown: static resources, dropped, or beyond the limit."""
    path: str | None
    """Path of the result in the workspace, if a file was requested."""


class RequestDetails(Output):
    """One request with its response."""

    method: str
    """HTTP method."""
    url: str
    """Address of the request."""
    status: int | None
    """HTTP status of the response; `null` if there is none."""
    text: str
    """The requested part, or all headers and bodies."""
    path: str | None
    """Path of the text in the workspace, if a file was requested."""
