"""Run folders from elsewhere: files that are none, that are too large, that grow, that run statements, and names that mislead."""

import gzip
import io
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import partial
from pathlib import Path

import pytest

import agentflow._folder_files
from agentflow.cli import main
from agentflow.errors import ConfigurationError
from agentflow.gateway import recorded_calls
from tests.agentflow.learner.test_token_page import write_run
from tests.attacks._table import Attack, attacks

CATEGORY = "folders"
SECRET = "words-of-the-host"
Write = Callable[[Path], object]
"""Replaces a file by something hostile."""
SQLITE = ("journal.db", "gateway/episodes.db")
FILES = (
    "settings.yaml", "metrics.jsonl", "report.json", "control.json", ".lock", "rollouts/step_000003.jsonl.gz", "rollouts/step_000003.scores.npz",
    *SQLITE, "journal.db-wal", "journal.db-journal", "journal.db-shm", "gateway/episodes.db-journal", "gateway/episodes.db-wal", "policy/tokenizer.json",
)  # fmt: skip


def _socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # The path of a socket has at most 108 bytes.
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def _outside(path: Path) -> Path:
    return next(parent for parent in path.parents if (parent / "outside").exists()) / "outside"


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def _chain(path: Path) -> None:
    for number in range(60):
        path.with_name(f"{path.name}.{number}").symlink_to(f"{path.name}.{number + 1}")
    path.symlink_to(f"{path.name}.0")


KINDS: dict[str, tuple[str, Write]] = {
    "FIFO": ("wait for the other end of a FIFO", os.mkfifo),
    "folder": ("read a folder as a file", Path.mkdir),
    "socket": ("open a socket", _socket),
    "endless device": ("read a device without end", lambda path: path.symlink_to("/dev/zero")),
    "terminal": ("read the terminal", lambda path: path.symlink_to("/dev/tty")),
    "link out": ("read a file of the host by a link", lambda path: path.symlink_to(_outside(path))),
    "relative link out": ("read a file of the host by a relative link", lambda path: path.symlink_to("../" * 20 + str(_outside(path)).lstrip("/"))),
    "link to proc": ("read the environment of the reader", lambda path: path.symlink_to("/proc/self/environ")),
    "link to itself": ("follow a link without end", lambda path: path.symlink_to(path.name)),
    "chain of links": ("follow 60 links", _chain),
    "link to nothing": ("follow a link to nothing", lambda path: path.symlink_to("nothing")),
    "1 TB": ("read a sparse file of 1 TB", _sparse),
    "zeros": ("read zeros", lambda path: path.write_bytes(bytes(100_000))),
}  # fmt: skip


def _journal(script: str) -> Write:
    def write(path: Path) -> None:
        path.unlink(missing_ok=True)
        with closing(sqlite3.connect(path)) as journal:
            journal.executescript(script)

    return write


_ENDLESS = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT 1 FROM c) SELECT 7 AS version, 7 AS page, 7 AS body FROM c WHERE n = 2"
_TABLES = "CREATE TABLE pages(place, attempt, page, end); CREATE TABLE calls(page, number, body);"
SCRIPTS: dict[str, tuple[str, str]] = {
    "view": ("run a query without end by a view", f"CREATE VIEW agentflow_schema AS {_ENDLESS}; CREATE VIEW pages AS {_ENDLESS}"),
    "trigger": ("run statements by a trigger", f"{_TABLES} CREATE TRIGGER t INSERT ON pages BEGIN SELECT 1; END"),
    "computed column": ("run a computed column", f"{_TABLES} CREATE TABLE z(a, b AS (zeroblob(1000000000)))"),
    "default": ("run the default of a column", "CREATE TABLE pages(place, attempt DEFAULT (zeroblob(1000000000)), page, end)"),
    "partial index": ("run the condition of an index", f"{_TABLES} CREATE INDEX i ON pages(place) WHERE length(zeroblob(1000)) > 1"),
    "index of an expression": ("run an index of an expression", f"{_TABLES} CREATE INDEX i ON pages(abs(place))"),
    "check": ("run a check", "CREATE TABLE pages(place CHECK (place <> zeroblob(9)), attempt, page, end)"),
    "virtual table": ("load a virtual table", "CREATE VIRTUAL TABLE v USING fts5(body)"),
    "extension": ("load an extension by a virtual table", f"{_TABLES} PRAGMA writable_schema=ON; INSERT INTO sqlite_master VALUES('table','v','v',0,'CREATE VIRTUAL TABLE v USING evil(''/tmp/x.so'')')"),
    "forged": ("forge the kind of a view", f"{_TABLES} PRAGMA writable_schema=ON; UPDATE sqlite_master SET sql='CREATE VIEW pages AS {_ENDLESS}', rootpage=0 WHERE name='pages'"),
    "loop of pages": ("lead a table back to itself", f"{_TABLES} PRAGMA writable_schema=ON; UPDATE sqlite_master SET rootpage=1"),
    "unknown statement": ("forge a statement", f"{_TABLES} PRAGMA writable_schema=ON; UPDATE sqlite_master SET sql='ATTACH ''/etc/x'' AS y'"),
    "names of the terminal": ("name a table by sequences of a terminal", 'CREATE TABLE "\x1b]0;x\x07\n"(a); CREATE VIEW "\x1b[2J" AS SELECT 1'),
    "no tables": ("read no tables", "PRAGMA user_version = 7"),
    "deep record": ("exhaust the stack by a record", f"{_TABLES} INSERT INTO pages VALUES('e', 1, 1, x'" + "91" * 3_000 + "'); INSERT INTO calls VALUES(1, 1, x'" + "91" * 3_000 + "')"),
    "text record": ("decode a record that is text", f"{_TABLES} INSERT INTO pages VALUES('e', 1, 1, 'x'); INSERT INTO calls VALUES(1, 1, 'x')"),
    "not text": ("decode a text that is none", f"{_TABLES} INSERT INTO pages VALUES('e', 1, 1, NULL); INSERT INTO calls VALUES(1, 1, x'a1ff')"),
}  # fmt: skip


def _line(path: Path, line: bytes, count: int) -> None:
    with gzip.open(path, "wb", 1) as file:
        for _ in range(count):
            file.write(line)


_STEP = "rollouts/step_000003.jsonl.gz"
CONTENTS: dict[str, tuple[str, str, Write]] = {
    "gzip of lines": ("unpack 200 MB of lines", _STEP, partial(_line, line=b"\n" * (1 << 20), count=200)),
    "gzip of a line": ("unpack a line of 200 MB", _STEP, partial(_line, line=b" " * (1 << 20), count=200)),
    "gzip of commas": ("unpack 200 MB of values", _STEP, partial(_line, line=b"0," * (1 << 19), count=200)),
    "gzip of gzip": ("unpack twice", _STEP, lambda path: path.write_bytes(gzip.compress(gzip.compress(bytes(1 << 20))))),
    "half a gzip": ("unpack a half", _STEP, lambda path: path.write_bytes(gzip.compress(b"{}\n" * 9_999)[:-20])),
    "gzip of a wrong sum": ("unpack what is damaged", _STEP, lambda path: path.write_bytes(gzip.compress(b"{}\n")[:-8] + bytes(8))),
    "no gzip": ("unpack text", _STEP, lambda path: path.write_bytes(b"{}\n")),
    "many gzips": ("unpack 20,000 members", _STEP, lambda path: path.write_bytes(gzip.compress(b"\n") * 20_000)),
    "a name in a gzip": ("unpack a long name", _STEP, lambda path: path.write_bytes(b"\x1f\x8b\x08\x08" + bytes(6) + b"n" * (8 << 20))),
    "deep lines": ("exhaust the stack by a line", _STEP, lambda path: path.write_bytes(gzip.compress(b"[" * 100_000 + b"\n"))),
    "deep metrics": ("exhaust the stack by figures", "metrics.jsonl", lambda path: path.write_bytes(b'{"a":' * 50_000)),
    "metrics without a number": ("give figures that are none", "metrics.jsonl", lambda path: path.write_text('{"step": NaN, "loss": 1e999}\n{"step": {}}\n[]\n')),
    "metrics with controls": ("name a figure by sequences of a terminal", "metrics.jsonl", lambda path: path.write_text('{"step": 1, "\\u001b[2J\\n": 1}\n')),
    "deep settings": ("exhaust the stack by settings", "settings.yaml", lambda path: path.write_text("[" * 20_000)),
    "aliases": ("unpack settings by aliases", "settings.yaml", lambda path: path.write_text("a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(9)))),
    "object": ("create an object by settings", "settings.yaml", lambda path: path.write_text(f"a: !!python/object/apply:os.system ['cat {_outside(path)}']\n")),
    "include": ("include a file by settings", "settings.yaml", lambda path: path.write_text(f"a: !include {_outside(path)}\n")),
    "journal of a host": ("connect to a host that the settings name", "settings.yaml", lambda path: path.write_text("journal: postgresql://me@127.0.0.1:1/x\nrun_name: run\n")),
    "journal of a file": ("open a file that the settings name", "settings.yaml", lambda path: path.write_text(f"journal: sqlite:///{_outside(path)}\nrun_name: run\n")),
    "settings of a model": ("call a model that the settings name", "settings.yaml", lambda path: path.write_text("model_name: x\nbase_url: http://127.0.0.1:1/v1\n")),
    "settings of the terminal": ("name a run by sequences of a terminal", "settings.yaml", lambda path: path.write_text('run_name: "\\e]0;x\\a\\n\\u202e"\n')),
    "control of a host": ("ask a control server of another host", "control.json", lambda path: path.write_text('{"url": "http://169.254.169.254/mcp", "token": "x", "process": ""}')),
    "control of a file": ("ask a file", "control.json", lambda path: path.write_text('{"url": "file:///etc/passwd", "token": "x", "process": ""}')),
    "control of nobody": ("forge the process of a run", "control.json", lambda path: path.write_text(json.dumps({"url": "http://127.0.0.1:1/mcp", "token": "x", "process": f"{os.getpid()}:1"}))),
    "scores of objects": ("unpickle scores", "rollouts/step_000003.scores.npz", lambda path: _pickled(path)),
    "scores of 1 TB": ("take memory by a shape", "rollouts/step_000003.scores.npz", lambda path: _shaped(path)),
    "no scores": ("read scores that are none", "rollouts/step_000003.scores.npz", lambda path: path.write_bytes(b"PK\x03\x04" + bytes(1000))),
    "tokenizer": ("read a tokenizer that is none", "policy/tokenizer.json", lambda path: path.write_bytes(b'{"version":"1.0","model":{"type":"BPE","vocab":{},"merges":[["a","b"]]}}')),
    "a report of the terminal": ("report sequences of a terminal", "report.json", lambda path: path.write_text('{"\\u001b[2J": "\\u001b]0;x\\u0007"}')),
}  # fmt: skip


def _pickled(path: Path) -> None:
    import numpy as np

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return subprocess.call, (["cat", str(_outside(path))],)

    with path.open("wb") as file:
        np.savez(file, samples=np.array([Evil()], dtype=object))


def _shaped(path: Path) -> None:
    import zipfile

    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (274877906944,), }"
    with zipfile.ZipFile(path, "w") as packed:
        padded = head + b" " * (117 - len(head)) + b"\n"
        for name in ("samples", "calls", "advantages", "lengths", "log_probs"):
            packed.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded)


NAMES: dict[str, tuple[str, bytes]] = {
    "terminal": ("clear the terminal by a name", b"\x1b[2J\x1b]0;x\x07"), "lines": ("forge a line by a name", b"run\nerror: forged"), "direction": ("turn the direction of text", "run\u202eexe".encode()),
    "not text": ("use a name that is no text", b"run\xff\xfe"), "long": ("use a long name", b"r" * 250), "quotes": ("leave an attribute of a page", b'"><script>alert(1)<'), "dash": ("use a name as an option", b"--help"),
    "spaces": ("use a name of spaces", b"   "), "percent": ("use an escape as a name", b"%2e%2e%2f"), "dots": ("use dots as a name", b"..."), "query": ("use a query as a name", b"?mode=rwc#"), "colon": ("use an address as a name", b"sqlite:x"),
    "null escape": ("use an encoded null as a name", b"%00"), "brackets": ("use a pattern as a name", b"[*]?{a,b}"), "shell": ("use a command as a name", b"$(touch evil);`id`"),
}  # fmt: skip

_CONTAINED = "ended; other run shown; nothing of the host; unchanged"
ATTACKS: list[Attack] = [
    *(
        attack
        for file in FILES
        for kind, (aim, _) in KINDS.items()
        for attack in attacks(CATEGORY, {f"{kind}: {file}": (f"{aim} as {file}", kind, _CONTAINED)}, soak=kind not in ("FIFO", "link out") or file in (".lock", "policy/tokenizer.json", "journal.db-shm", "rollouts/step_000003.scores.npz"))
    ),
    *(
        attack
        for file in SQLITE
        for name, (aim, _) in SCRIPTS.items()
        for attack in attacks(CATEGORY, {f"statements: {file}: {name}": (aim, name, _CONTAINED)}, soak=name not in ("view", "trigger", "forged", "deep record"))
    ),
    *attacks(CATEGORY, {f"content: {name}": (aim, name, _CONTAINED) for name, (aim, _, _) in CONTENTS.items()}, soak=True),
    *attacks(CATEGORY, {f"name: {name}": (aim, name, _CONTAINED) for name, (aim, _) in NAMES.items()}, soak=True),
    *attacks(CATEGORY, {
        "place: 3,000 runs": ("take time by many folders", "runs", _CONTAINED),
        "place: 100,000 files": ("take time by many files", "files", _CONTAINED),
        "place: deep": ("take the stack by deep folders", "deep", _CONTAINED),
        "place: loops": ("walk in circles", "loops", _CONTAINED),
        "place: swapped file": ("swap a file for a link while it is read", "swapped file", _CONTAINED),
        "place: growing file": ("let a file grow while it is read", "growing file", _CONTAINED),
        "place: vanishing": ("remove files while they are read", "vanishing", _CONTAINED),
    }, soak=True),
]  # fmt: skip


def _replace(path: Path, write: Write) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    if path.is_symlink() or path.exists():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    write(path)


@contextmanager
def _repeating(action: Callable[[], object]) -> Generator[None]:
    """Repeat an action in a thread during the block."""
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            with suppress(OSError):
                action()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _swap(path: Path, target: Path) -> Callable[[], object]:
    hidden = path.with_name(f".{path.name}.hidden")

    def swap() -> None:
        path.rename(hidden)
        path.symlink_to(target)
        time.sleep(0.0005)
        path.unlink()
        hidden.rename(path)

    return swap


def _append(path: Path) -> None:
    with path.open("a") as file:
        file.write('{"step": 4}\n' * 100)


@contextmanager
def _placed(attack: Attack, runs: Path) -> Generator[None]:
    """Write what the attack needs beside a good run; some attacks continue during the block."""
    bad = runs / "bad"
    kind, _, rest = attack.id.removeprefix(f"{CATEGORY}: ").partition(": ")
    outside = runs.parent / "outside"
    if kind == "name":
        os.rename(bad, os.path.join(os.fsencode(runs), NAMES[attack.code][1]))
    elif kind == "statements":
        name = rest.partition(": ")[0]
        _replace(bad / name, _journal(SCRIPTS[attack.code][1]))
    elif kind == "content":
        _, name, write = CONTENTS[attack.code]
        _replace(bad / name, write)
    elif kind != "place":
        database, is_log, _ = rest.partition("-")
        if is_log:
            _replace(bad / database, _journal(_TABLES))
        _replace(bad / rest, KINDS[attack.code][1])
    elif attack.code == "runs":
        for number in range(3_000):
            (runs / f"r{number}").mkdir()
            (runs / f"r{number}/settings.yaml").touch()
    elif attack.code == "files":
        (bad / "many").mkdir()
        for number in range(100_000):
            (bad / "many" / f"{number}.jsonl").touch()
    elif attack.code == "deep":
        path = bad
        for _ in range(400):
            path = path / "d"
            path.mkdir()
        (path / "settings.yaml").touch()
    elif attack.code == "loops":
        for number in range(20):
            (bad / f"loop{number}").symlink_to("..")
            (runs / f"loop{number}").symlink_to(".")
    else:
        other = runs.parent / "other"
        shutil.copytree(bad, other)
        (other / "metrics.jsonl").write_text(f'{{"step": 1, "{SECRET}": 1}}\n')
        shutil.copy(outside, other / "report.json")
        action = {
            "swapped file": _swap(bad / "metrics.jsonl", other / "metrics.jsonl"),
            "growing file": partial(_append, bad / "metrics.jsonl"),
            "vanishing": _swap(bad / _STEP, runs / "nothing"),
        }[attack.code]
        with _repeating(action):
            yield
        return
    yield


def _try(attack: Attack, folder: Path) -> str:
    shutil.rmtree(folder, ignore_errors=True)
    runs = folder / "runs"
    for name in ("good", "bad"):
        write_run(runs / name)
        (runs / name / "metrics.jsonl").write_text('{"step": 3, "reward": 0.5}\n', encoding="utf-8")
    (folder / "outside").write_text(f"{SECRET}: 1\n", encoding="utf-8")
    out, err = io.StringIO(), io.StringIO()
    before = (folder / "outside").stat().st_mtime_ns
    rounds = 20 if attack.code in ("swapped file", "vanishing") else 1
    shown, status = b"", 0
    with _placed(attack, runs), redirect_stdout(out), redirect_stderr(err):
        for number in range(rounds):
            page = folder / f"page{number}"
            status = main(["bundle", str(runs), "-o", str(page), "--json"])
            assert status in (0, 2), err.getvalue()
            shown += b"".join(file.read_bytes() for file in (page / "data").glob("*"))
        for name in os.listdir(os.fsencode(runs))[:3]:
            path = os.fsdecode(os.path.join(os.fsencode(runs), name))
            assert main(["ctl", "status", "--dir", path]) != 0
            with suppress(ConfigurationError):
                recorded_calls(Path(path) / "gateway", "e")
    text = out.getvalue() + err.getvalue()
    # Names that are no text are written with escapes.
    text = text.encode(errors="backslashreplace").decode()
    assert all(letter.isprintable() or letter in "\n\t" for letter in text), repr(text)[:300]
    assert "Traceback" not in text, text
    other = "other run shown" if status == 0 and b"good" in shown else f"other run not shown: {text[:300]}"
    leaked = SECRET in text or SECRET.encode() in shown
    unchanged = (folder / "outside").stat().st_mtime_ns == before and not Path("evil").exists()
    return f"ended; {other}; {'something' if leaked else 'nothing'} of the host; {'unchanged' if unchanged else 'changed'}"


def observe(table: Iterable[Attack], folder: Path) -> dict[str, str]:
    """Show a folder with a good run beside each hostile one; return the outcomes by id."""
    seen: dict[str, str] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agentflow._folder_files, "QUERY_SECONDS", 0.2)
        for attack in table:
            try:
                seen[attack.id] = _try(attack, folder / "try")
            except Exception as error:  # An attack has succeeded.
                seen[attack.id] = f"raised {type(error).__name__}: {error}"
    return seen
