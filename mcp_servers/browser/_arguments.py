"""Arguments that many browser tools have, with the names that Playwright's MCP server gives them."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Button", "Element", "FilePath", "FormField", "Modifier", "OnlyElement", "Target"]

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
