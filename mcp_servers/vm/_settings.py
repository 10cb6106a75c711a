"""Settings of the vm backend."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from agentflow.settings import Section
from mcp_servers.core._failures import did_you_mean
from mcp_servers.vm._steps import Step

ACTIONS = (
    "click",
    "double_click",
    "right_click",
    "move",
    "drag",
    "scroll",
    "type",
    "key",
    "hotkey",
    "mouse_down",
    "mouse_up",
    "key_down",
    "key_up",
)
"""Verbs of the tools that act on the machine."""

Side = Annotated[int, Field(ge=64, le=4096)]
When = Literal["never", "asked", "after"]


class DesktopSettings(Section):
    """Options of a desktop."""

    dpi: int = Field(default=96, ge=24, le=480)
    """Dots per inch: the size of text."""
    accessibility: bool = True
    """Applications provide an accessibility tree."""
    panel: bool = False
    """A panel with the open windows and buttons for a terminal, a file manager, an editor and, if installed, a browser, and a menu."""


class VmSettings(Section):
    """Settings of the vm backend."""

    machine: Literal["desktop", "qemu"] = "desktop"
    """`desktop`: an X server with a window manager in the session's sandbox; `qemu`: a virtual machine."""
    screen_size: tuple[Side, Side] | None = None
    """Width and height of the screen; the default is 1280x800 for a desktop, and the image's own for qemu."""
    desktop: DesktopSettings = DesktopSettings()
    """Options of `machine: desktop`."""
    qemu: dict[str, object] = Field(default_factory=dict[str, object])
    """Options of `machine: qemu`: `image` and the other settings of that runtime."""
    setup: list[Step] = Field(default_factory=list[Step])
    """Steps at the start of every session, before the first tool: execute, launch, upload, wait."""
    screenshot: Literal["asked", "after"] = "asked"
    """`asked`: only `vm_screenshot` shows the screen; `after`: every action does, too."""
    accessibility: When = "asked"
    """Results with the accessibility tree: never, `asked` with `vm_screenshot`, or `after` every action, too."""
    settle_seconds: float = Field(default=1.0, ge=0, le=30)
    """Maximum time until the screen shown after an action stops changing, in seconds."""
    wait_seconds: float = Field(default=60.0, gt=0, le=600)
    """Longest `vm_wait` in seconds."""
    allow_actions: list[str] | None = None
    """Allowed actions (`click`, `type`, …); the default allows all."""
    evaluate: bool = True
    """Offer `vm_evaluate`; disable it on a server for agents only."""
    evaluate_seconds: float = Field(default=60.0, gt=0, le=600)
    """Time limit of one command of an evaluation, in seconds."""

    @field_validator("allow_actions")
    @classmethod
    def _know_actions(cls, actions: list[str] | None) -> list[str] | None:
        for action in actions or ():
            if action not in ACTIONS:
                raise ValueError(f"no action {action!r}.{did_you_mean(action, ACTIONS)}")
        return actions

    @model_validator(mode="after")
    def _need_an_image(self) -> Self:
        if self.machine == "qemu" and not {"image", "vm_path"} & set(self.qemu):
            raise ValueError(
                "`machine: qemu` needs an image: `qemu: {image: DIRECTORY}` (scripts/make-guest builds one)"
            )
        return self
