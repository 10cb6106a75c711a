"""Request loop of a worker process: handles one request at a time and interrupts slow ones."""

import json
import os
import queue
import resource
import select
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeAlias

from runtimes._confinement import set_limit
from runtimes._framing import read_frame, write_frame

from ._confining import confine
from ._engine import (
    DatabaseSpec,
    DatabaseUnavailable,
    EngineTable,
    QueryRejected,
    SqlEngine,
    SqlEngineError,
    StatementResult,
)
from ._values import cell

Request: TypeAlias = dict[str, Any]
MIB = 1024 * 1024
OVERHEAD = {"sqlite": 256 * MIB, "duckdb": 1024 * MIB, "postgres": 384 * MIB, "keeper": 384 * MIB}
"""Address space used by the engine and the interpreter before any query."""
DESCRIPTORS = 256
"""Most open files and connections."""
COUNTED = 1_000_000
"""Rows are counted up to this number."""
LAST_SECONDS = 1.0
"""Time for the engine to stop after the input has ended."""


def main() -> None:
    """Handle requests until standard input ends."""
    first = _next_request()
    if first is None:
        return
    database = DatabaseSpec(**json.loads(first)["database"])
    # Before any thread, and after loading the engine's library, whose files are then out of reach.
    open_engine = _loaded(database)
    _limit(database)
    confine(database)
    requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
    wake, woken = os.pipe()
    engine_of: list[SqlEngine] = []
    worker = threading.Thread(target=_work, args=(open_engine, requests, woken, engine_of), daemon=True)
    worker.start()
    os.read(wake, 1)
    while (payload := _next_request()) is not None:
        request: Request = json.loads(payload)
        requests.put(request)
        if not _wait(wake, request.get("seconds"), engine_of):
            break
    requests.put(None)
    for engine in engine_of:
        engine.interrupt()
    worker.join(LAST_SECONDS)
    sys.stdout.flush()
    os._exit(0)


def _next_request() -> bytes | None:
    """Read one frame without a buffer, which would hide from `select` that more has arrived."""
    return read_frame(lambda size: os.read(0, size))


def _wait(wake: int, seconds: float | None, engine_of: list[SqlEngine]) -> bool:
    """Wait for the reply and interrupt the request at its time limit; return `False` if the input has ended."""
    left = seconds
    while True:
        ready, _, _ = select.select([wake, 0], [], [], left)
        if wake in ready:
            os.read(wake, 1)
            return True
        # The next request comes only after the reply, so readable input means the end.
        if ready:
            return False
        # Repeatedly, because an interrupt just before the engine starts has no effect.
        for engine in engine_of:
            engine.interrupt()
        left = 0.05


def _limit(database: DatabaseSpec) -> None:
    space = database.memory + OVERHEAD[database.engine]
    set_limit(resource.RLIMIT_AS, space)
    set_limit(resource.RLIMIT_FSIZE, database.file_bytes)
    set_limit(resource.RLIMIT_CORE, 0)
    set_limit(resource.RLIMIT_NOFILE, DESCRIPTORS)


def _work(
    open_engine: Callable[[], SqlEngine],
    requests: "queue.SimpleQueue[Request | None]",
    woken: int,
    engine_of: list[SqlEngine],
) -> None:
    opened = _guarded(lambda: engine_of.append(open_engine()) or {})
    os.write(woken, b".")
    _reply(opened)
    if not engine_of:
        return
    (engine,) = engine_of
    while (request := requests.get()) is not None:
        answer = _answer(engine, request)
        # Before the reply, because the next request may follow at once.
        os.write(woken, b".")
        _reply(answer)
        # An error shows up with the next statement.
        _guarded(lambda: engine.tidy() or {})
    engine.close()


def _loaded(database: DatabaseSpec) -> Callable[[], SqlEngine]:
    """Load the engine's library; return a function that opens the database, or says that the library is missing."""
    try:
        match database.engine:
            case "sqlite":
                from ._sqlite import SqliteEngine as Engine
            case "duckdb":
                from ._duckdb import DuckdbEngine as Engine
            case "postgres":
                from ._postgres import PostgresEngine as Engine
            case _:
                from ._postgres import PostgresCopies as Engine
    except ImportError:
        return _missing
    return lambda: Engine(database)


def _missing() -> SqlEngine:
    # The host adds the command.
    raise DatabaseUnavailable("this database needs the extra sql")


def _answer(engine: SqlEngine, request: Request) -> str:
    match request["do"]:
        case "query":
            return _guarded(lambda: _query(engine, request), engine.abandon)
        case "schema":
            return _guarded(lambda: _schema(engine, request), engine.abandon)
        case "copy":
            return _guarded(lambda: engine.copy(request["target"], request["source"]) or {})
        case _:
            return _guarded(lambda: engine.remove(request["target"]) or {})


def _guarded(work: Callable[[], dict[str, Any] | str], at_end: Callable[[], object] | None = None) -> str:
    try:
        try:
            answer = work()
            return answer if isinstance(answer, str) else _json(answer)
        finally:
            if at_end is not None:
                at_end()
    except SqlEngineError as error:
        return _failure(error.kind, str(error), error.type)
    except MemoryError:
        return _failure("out_of_memory", "")
    except InterruptedError:
        return _failure("timeout", "")
    except Exception as error:  # boundary: any error of an engine is a reply, and the worker continues
        return _failure("failed", f"{type(error).__name__}: {error}")


def _failure(kind: str, message: str, type: str = "") -> str:
    return _json({"kind": kind, "type": type, "message": message})


def _query(engine: SqlEngine, request: Request) -> str:
    began = time.perf_counter()
    answer = engine.run(request["query"])
    rows, more = _read(answer, request["rows"], request["bytes"])
    changed = answer.changed()
    engine.finish()
    head = {
        "columns": [{"name": name, "type": type} for name, type in answer.columns],
        "changed": changed,
        "more": more,
        "seconds": time.perf_counter() - began,
    }
    # The rows are already encoded, because their size is limited in JSON.
    return f'{_json(head)[:-1]}, "rows": [{",".join(rows)}]}}'


def _read(answer: StatementResult, most: int, most_bytes: int) -> tuple[list[str], str]:
    """Return the rows within the limits, and the limit that was exceeded."""
    rows: list[str] = []
    size = 0
    for row in answer.rows:
        if len(rows) == most:
            return rows, "rows"
        written = json.dumps([cell(value) for value in row], ensure_ascii=False)
        size += len(written.encode())
        if size > most_bytes:
            return rows, "bytes"
        rows.append(written)
    return rows, ""


def _schema(engine: SqlEngine, request: Request) -> dict[str, Any]:
    tables = engine.tables()
    engine.abandon()
    wanted = {name.lower() for name in request["tables"]}
    names = [table.name for table in tables]
    if wanted:
        tables = [table for table in tables if table.name.lower() in wanted]
    ends = time.monotonic() + request["counting_seconds"]
    described = [_described(engine, table, request, ends) for table in tables[: request["most"]]]
    return {"tables": described, "known": names, "more": len(tables) > request["most"]}


def _described(engine: SqlEngine, table: EngineTable, request: Request, ends: float) -> dict[str, Any]:
    description = asdict(table)
    del description["quoted"]
    description["row_count"] = description["sample"] = None
    try:
        if table.kind == "table" and time.monotonic() < ends:
            counted = engine.run(
                f"SELECT count(*) FROM (SELECT 1 FROM {table.quoted} LIMIT {COUNTED + 1}) AS counted"
            )
            rows, _ = _read(counted, 1, 1000)
            engine.finish()
            count = json.loads(rows[0])[0]
            description["row_count"] = count if count <= COUNTED else None
        if request["samples"]:
            rows, _ = _read(
                engine.run(f"SELECT * FROM {table.quoted} LIMIT {request['samples']}"), 100, request["bytes"]
            )
            description["sample"] = [json.loads(row) for row in rows]
    except QueryRejected:
        # A view on a dropped table cannot be read but is still listed.
        pass
    finally:
        engine.abandon()
    return description


def _json(value: object) -> str:
    # Escapes would exceed the limits, which are in bytes.
    return json.dumps(value, ensure_ascii=False)


def _reply(text: str) -> None:
    write_frame(1, text.encode("utf-8", "replace"))
