"""Package attributes that are imported on first use. Standard library only: sandboxes import this, too."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def lazy_exports(package: str, homes: "Mapping[str, Sequence[str]]") -> "Callable[[str], object]":
    """Return a module-level `__getattr__` that imports each exported name on first use.

    :param package: `__name__` of the package.
    :param homes: module -> the names it defines; a leading dot makes the module relative to the package.

    Example::

        __getattr__ = lazy_exports(__name__, {"._journal": ["Journal", "open_journal"]})
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def load(name: str) -> object:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        import sys
        from importlib import import_module

        value: object = getattr(import_module(home, package), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
