# ruff: noqa: T201
"""Indexes a folder as the backend does: `python -m tests.mcp_servers.rag._index_program SOURCE INDEX`. Says when it begins."""

import sys

import anyio

from mcp_servers.rag import _building
from tests.mcp_servers.rag._library import library


async def main(source: str, index: str, batch: int) -> None:
    _building.__dict__["_BATCH_DOCUMENTS"] = batch
    print("begun", flush=True)
    async with library(index_path=source, index_dir=index) as one:
        print((await one.data("stats"))["documents"], flush=True)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]))
