"""Replaces the trainer that needs a GPU by `engine.py`, in every process whose path has this folder."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "trinity.trainer.verl.trainer":
            return None
        return importlib.util.spec_from_file_location(fullname, Path(__file__).with_name("engine.py"))


sys.meta_path.insert(0, _Finder())
