"""Full outputs and images of a session, kept so that results can link to them."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

MOST = 1000
"""Maximum number of resources in a store, because each has an overhead."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One kept item."""

    uri: str
    """URI to read it by."""
    name: str
    """A short name for people."""
    mime: str
    """MIME type."""
    data: bytes
    """The content."""


class ResourceStore:
    """Resources up to a total size and count; the oldest are dropped first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._size = 0
        self._resources: OrderedDict[str, Resource] = OrderedDict()

    def put(self, resource: Resource) -> None:
        """Store a resource, truncated if it is larger than the whole store."""
        if len(resource.data) > self._capacity:
            cut = resource.data[: self._capacity]
            resource = Resource(resource.uri, resource.name, resource.mime, cut)
        self._resources[resource.uri] = resource
        self._size += len(resource.data)
        while self._size > self._capacity or len(self._resources) > MOST:
            _, oldest = self._resources.popitem(last=False)
            self._size -= len(oldest.data)

    def get(self, uri: str) -> Resource | None:
        """Return the resource, or `None` if it was dropped or never stored."""
        return self._resources.get(uri)

    def __iter__(self) -> Iterator[Resource]:
        """Iterate over all resources, oldest first."""
        return iter(tuple(self._resources.values()))

    def copy(self) -> "ResourceStore":
        """Return a store with the same resources; their bytes are shared."""
        other = ResourceStore(self._capacity)
        for resource in self:
            other.put(resource)
        return other
