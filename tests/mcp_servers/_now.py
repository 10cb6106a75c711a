"""A clock that is advanced by hand."""


class Now:
    """Callable clock; set `seconds` to advance it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.seconds
