"""Request for the facts that an image shows, each with its region."""

from typing import Any

from msgspec import Struct, field

from agentflow.trace import Action, Blob, Region, Request
from agentflow.values import ValueKind


class ImageFact(Struct, frozen=True):
    """A fact that a region of an image shows."""

    subject: str
    """Full name of the subject."""
    relation: str
    """Noun phrase that fits into "the … of SUBJECT"."""
    value: str
    """Value as the image shows it, without its unit."""
    kind: ValueKind
    """Type of the value."""
    quote: str
    """Content of the region."""
    region: Region
    """The region."""
    unit: str = ""
    """Unit of a number."""


class ImageFacts(Struct, frozen=True):
    """Facts of an image."""

    facts: tuple[ImageFact, ...]
    """The facts, the most specific first."""


class ImageFactsRequest(Request[ImageFacts], frozen=True, kw_only=True):
    """Ask for the facts that an image shows."""

    seed: str
    """The subject that is explored."""
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    """Values given with the seed."""
    seed_description: str = ""
    """Description of the seeds of this run."""
    action: Action
    """Call that returned the image."""
    image: Blob
    """The image."""
