"""Whole outputs and pictures, kept for a while so that a result can link to them."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Resource", "ResourceStore"]

MOST = 1000
"""Resources on one resources: small ones take room too."""


@dataclass(frozen=True, slots=True)
class Resource:
    """Something kept whole."""

    uri: str
    """What it is read by."""
    name: str
    """A short name for people."""
    mime: str
    """Its type."""
    data: bytes
    """Its bytes."""


class ResourceStore:
    """Keeps resources up to a number of bytes, and of pieces; the oldest make room for new ones."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._size = 0
        self._resources: OrderedDict[str, Resource] = OrderedDict()

    def put(self, resource: Resource) -> None:
        """Keep it; cut it to the capacity if it is larger than the whole store."""
        if len(resource.data) > self._capacity:
            cut = resource.data[: self._capacity]
            resource = Resource(resource.uri, resource.name, resource.mime, cut)
        self._resources[resource.uri] = resource
        self._size += len(resource.data)
        while self._size > self._capacity or len(self._resources) > MOST:
            _, oldest = self._resources.popitem(last=False)
            self._size -= len(oldest.data)

    def get(self, uri: str) -> Resource | None:
        """The resource, if it is (still) here."""
        return self._resources.get(uri)

    def __iter__(self) -> Iterator[Resource]:
        """All of them, oldest first."""
        return iter(tuple(self._resources.values()))

    def copy(self) -> "ResourceStore":
        """A store with the same resources; their bytes are shared."""
        other = ResourceStore(self._capacity)
        for resource in self:
            other.put(resource)
        return other
