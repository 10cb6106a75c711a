"""Settings of the vm backend."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from agentflow.settings import Section
from mcp_servers.core._failures import did_you_mean
from mcp_servers.vm._steps import Step

__all__ = ["ACTIONS", "DesktopSettings", "VmSettings"]

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
"""The tools that act on the machine, by their verbs."""

Side = Annotated[int, Field(ge=64, le=4096)]
When = Literal["never", "asked", "after"]


class DesktopSettings(Section):
    """What a desktop is to be."""

    dpi: int = Field(default=96, ge=24, le=480)
    """How large letters are."""
    accessibility: bool = True
    """Applications can tell what is in their windows."""


class VmSettings(Section):
    """Settings of the vm backend."""

    machine: Literal["desktop", "qemu"] = "desktop"
    """`desktop`: an X server with a window manager in the session's sandbox; `qemu`: a whole computer."""
    screen_size: tuple[Side, Side] | None = None
    """Width and height of the screen; without it 1280x800 on a desktop, and what the image has on qemu."""
    desktop: DesktopSettings = DesktopSettings()
    """Options of `machine: desktop`."""
    qemu: dict[str, object] = Field(default_factory=dict[str, object])
    """Options of `machine: qemu`: `image` and the others of that runtime."""
    setup: list[Step] = Field(default_factory=list[Step])
    """What is done at the start of every session, before the first tool: execute, launch, upload, wait."""
    screenshot: Literal["asked", "after"] = "asked"
    """`asked`: only `vm_screenshot` shows the screen; `after`: every action does, too."""
    accessibility: When = "asked"
    """When results hold the accessibility tree, where there is one: never, with `vm_screenshot`, or `after` every action, too."""
    settle_seconds: float = Field(default=1.0, ge=0, le=30)
    """What is shown after an action is shown when the screen is still, or after this long."""
    wait_seconds: float = Field(default=60.0, gt=0, le=600)
    """The longest that `vm_wait` waits."""
    allow_actions: list[str] | None = None
    """The actions that may be done (`click`, `type`, …); without it all."""
    evaluate: bool = True
    """There is `vm_evaluate`; a server for agents alone can switch it off."""
    evaluate_seconds: float = Field(default=60.0, gt=0, le=600)
    """The longest that one command of an evaluation may take."""

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
                "`machine: qemu` needs an image: `qemu: {image: FOLDER}` (scripts/make-guest makes one)"
            )
        return self
