"""Package attributes that are imported on first use."""

import sys
from types import ModuleType

import pytest

from runtimes._lazy import lazy_exports


def test_a_lazy_name_is_imported_once_and_then_belongs_to_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    package, home = ModuleType("lazy_package"), ModuleType("lazy_package._home")
    home.__dict__["Name"] = value = object()
    monkeypatch.setitem(sys.modules, "lazy_package", package)
    monkeypatch.setitem(sys.modules, "lazy_package._home", home)
    load = lazy_exports("lazy_package", {"._home": ["Name"]})
    assert load("Name") is value
    assert vars(package)["Name"] is value


def test_an_unknown_lazy_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'lazy_package' has no attribute 'Nothing'"):
        lazy_exports("lazy_package", {})("Nothing")
