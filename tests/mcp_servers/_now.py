"""A clock that stands still until it is told."""


class Now:
    """Call it for the time; set `seconds` to let time pass."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        """The time."""
        return self.seconds
