"""Run the Python snippets of one page in order, in one namespace and one event loop: `python _run_snippets.py PAGE`.

With `--load MODULE…`, pages are read from standard input with their directories, one JSON list a line. Each runs in a fork,
which has these modules loaded; the reply is a line with what the fork printed, if it failed.
"""

import ast
import asyncio
import gc
import importlib
import inspect
import json
import linecache
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import NoReturn

from tests.behaviour._markdown import Snippet, snippets


async def run(page: str, blocks: list[Snippet]) -> None:
    """Run the blocks. Line numbers of a traceback are those of the page."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks:
        source = "\n" * (block.line - 1) + block.text
        code = compile(source, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result: object = eval(code, namespace)
        if inspect.isawaitable(result):
            await result


def main(page: Path) -> None:
    """Run every ```python block of the page."""
    text = page.read_text(encoding="utf-8")
    linecache.cache[str(page)] = (len(text), None, text.splitlines(keepends=True), str(page))
    asyncio.run(run(str(page), snippets(page, "python")))


def serve(modules: Sequence[str]) -> None:
    """Run a page in a fork for each line of standard input."""
    for module in modules:
        importlib.import_module(module)
    gc.freeze()
    for line in sys.stdin:
        page, folder = json.loads(line)
        with TemporaryFile() as output:
            child = os.fork()
            if child == 0:
                _work(Path(page), folder, output.fileno())
            _, status = os.waitpid(child, 0)
            output.seek(0)
            failed = output.read().decode(errors="replace") or f"it ended with {status}"
        sys.stdout.write(f"{json.dumps(failed if status else '')}\n")
        sys.stdout.flush()


def _work(page: Path, folder: str, output: int) -> NoReturn:
    """Run a page in this fork, and end as a program of its own would."""
    os.chdir(folder)
    sys.path[0] = folder
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    main(page)
    sys.exit()


if __name__ == "__main__":
    if sys.argv[1] == "--load":
        serve(sys.argv[2:])
    else:
        main(Path(sys.argv[1]))
