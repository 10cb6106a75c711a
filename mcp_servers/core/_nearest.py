"""The nearest right name, for messages about wrong ones."""

from collections.abc import Iterable

__all__ = ["did_you_mean"]


def did_you_mean(wrong: str, right: Iterable[str]) -> str:
    """`" Did you mean 'x'?"`, or all of `right` when they are few, or nothing."""
    import difflib  # only ever needed on the way to an error

    names = sorted(right)
    near = difflib.get_close_matches(wrong, names, n=1, cutoff=0.5)
    if near:
        return f" Did you mean {near[0]!r}?"
    if 0 < len(names) <= 12:
        return f" There are: {', '.join(names)}."
    return ""
