# ruff: noqa: T201
"""Indexes a folder as the backend does: `python -m tests.mcp_servers.rag._index_program SOURCE INDEX BATCH [DOCUMENTS]`.

Says when it begins. Where a number of documents is given, it stops (as by SIGSTOP) when it has read so many.
"""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio

from mcp_servers.rag import _index_update
from mcp_servers.rag._documents import CorpusDocument, ReadFormatted, documents_of
from tests.mcp_servers.rag._library import library


async def main(source: str, index: str, batch: int, stop: int = 0) -> None:
    def some_documents(file: str, path: Path, read: ReadFormatted) -> Iterator[CorpusDocument]:
        for number, document in enumerate(documents_of(file, path, read), 1):
            yield document
            if number == stop:
                os.kill(os.getpid(), signal.SIGSTOP)

    _index_update.__dict__["_BATCH_DOCUMENTS"] = batch
    _index_update.__dict__["documents_of"] = some_documents
    print("begun", flush=True)
    async with library(index_path=source, index_dir=index) as searched:
        print((await searched.data("stats"))["documents"], flush=True)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
