"""Run the Python snippets of one page in order, in one namespace and one event loop: `python _run_snippets.py PAGE`."""

import ast
import asyncio
import inspect
import linecache
import sys
from pathlib import Path

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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
