"""Run folders made by somebody else: they are read and shown; nothing in them is connected to, and nothing costs much."""

import gzip
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec
import numpy as np
import pytest

import agentflow._folder_files
from agentflow import synthesize
from agentflow._folder_files import connect_read_only, sqlite_reason
from agentflow.cli import main
from agentflow.dashboard import PageData, api_path
from agentflow.errors import ConfigurationError
from agentflow.exports import export_run
from agentflow.inspection import open_runs
from agentflow.journal import this_process
from agentflow.runs import is_output_active
from tests._postgres import PostgresServer
from tests.agentflow.inspection._journals import claimed
from tests.agentflow.learner.test_token_page import write_run

WORDS = ("max_depth=2", "depth_threshold=1", "control=false")
BOMB_BYTES = 300_000_000
MAX_MEMORY = 200 << 20


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the output directory of a synthesis."""
    folder = tmp_path_factory.mktemp("hostile") / "run"
    synthesize(seeds=["Explore the ferries"], overrides=[*WORDS, f"output_dir={folder}"], progress=False)
    return folder


@pytest.fixture
def two_runs(finished: Path, tmp_path: Path) -> Path:
    """Return a folder with a good synthesis and a training."""
    shutil.copytree(finished, tmp_path / "runs/good")
    write_run(tmp_path / "runs/other")
    (tmp_path / "runs/other/metrics.jsonl").write_text('{"step": 3, "reward": 0.5}\n', encoding="utf-8")
    return tmp_path / "runs"


class FakeServer:
    """Server that accepts every connection, asks for a password as Postgres does, and keeps what it gets."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.received: list[bytes] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                while data := connection.recv(4096):
                    self.received.append(data)
                    is_tls = data[4:8] == b"\x04\xd2\x16\x2f"
                    connection.sendall(b"N" if is_tls else b"R\0\0\0\x08\0\0\0\x03")
                    if data.startswith(b"p"):
                        break


@contextmanager
def fake_server() -> Generator[FakeServer]:
    server = FakeServer()
    try:
        yield server
    finally:
        server.close()


COMMANDS: dict[str, tuple[str, ...]] = {
    "view": ("view", "{}", "--no-open"),
    "bundle": ("bundle", "{}", "-o", "{}-bundle"),
    "watch": ("ctl", "watch", "{}"),
    "status": ("ctl", "status", "{}"),
    "pause": ("ctl", "pause", "{}"),
    "export": ("export", "{}", "--format", "native", "-o", "{}-export"),
}


@pytest.mark.promise("inspection:named-hosts")
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_database_that_only_a_folder_names_is_named_and_not_connected_to(
    command: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PGPASSWORD", "hunter2hunter2")
    folder = tmp_path / "run"
    folder.mkdir()
    with fake_server() as server:
        url = f"postgresql://me@127.0.0.1:{server.port}/runs"
        (folder / "settings.yaml").write_text(f"journal: {url}\nrun_name: run\n", encoding="utf-8")
        assert main([word.replace("{}", str(folder)) for word in command]) == 2
        assert server.received == []
    (line,) = capsys.readouterr().err.splitlines()
    if command[0] != "export":  # it reads files only
        assert f"{folder}: its settings name a journal on 127.0.0.1" in line
        assert line.endswith(f"; to connect to it, add --journal {url}")


@pytest.mark.promise("inspection:named-hosts")
@pytest.mark.parametrize(
    ("journal", "said"),
    [
        (
            "postgresql://me:secretword@good.example/runs?host=evil.example",
            "to connect to it, add --journal 'postgresql://me:***@good.example/runs?host=evil.example' with its password",
        ),
        ("'postgresql://h/$(reboot)'", "add --journal 'postgresql://h/$(reboot)'"),
        ("postgresql://h:port/d", "is no address"),
        ("sqlite:////etc/hostname", "on this machine, /etc/hostname"),
    ],
)
def test_the_refusal_names_the_host_and_the_words_to_type(journal: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text(f"journal: {journal}\n", encoding="utf-8")
    with pytest.raises(ConfigurationError) as refused:
        open_runs(tmp_path)
    assert said in str(refused.value)
    assert "on evil.example" in str(refused.value) or "evil" not in journal
    assert "\n" not in str(refused.value)
    assert "secretword" not in str(refused.value)


@pytest.mark.promise("inspection:named-hosts")
def test_a_database_on_the_command_line_is_not_used_for_a_folder_that_names_another(tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text("journal: postgresql://evil.example/runs\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"on evil\.example"):
        open_runs(tmp_path, journal="postgresql://db.example/runs")


@pytest.mark.promise("inspection:named-hosts")
@pytest.mark.parametrize(
    "process", ["", "elsewhere:1:1", f"{this_process()}0"], ids=["none", "elsewhere", "dead"]
)
def test_a_control_server_that_no_process_of_this_machine_serves_is_not_asked(
    process: str, tmp_path: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    with fake_server() as server:
        url = f"http://127.0.0.1:{server.port}/mcp"
        record = {"url": url, "token": "x", "process": process}
        (folder / "control.json").write_text(json.dumps(record), encoding="utf-8")
        assert main(["ctl", "status", "--dir", str(folder)]) == 1
        assert main(["ctl", "watch", "--dir", str(folder), "--patience", "0"]) == 1
        with open_runs(folder) as runs, pytest.raises(Exception, match="not active on this machine"):
            PageData(runs).load(api_path("r", runs.runs()[0].id, "status"))
        assert server.received == []
    first, *_ = capsys.readouterr().err.splitlines()
    assert f"no run of this machine responds at {url}" in first
    assert "with --url and --token" in first


@pytest.mark.promise("inspection:named-hosts")
async def test_a_database_on_the_command_line_is_connected_to(
    postgres: PostgresServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = postgres.new_database()
    async with claimed(url, ["a"]):
        pass
    (tmp_path / "run").mkdir()
    (tmp_path / "run/settings.yaml").write_text(f"journal: {url}\nrun_name: run\n", encoding="utf-8")

    def shown() -> list[Any]:
        words = (
            ["bundle", "-o", str(tmp_path / "page")],
            ["ctl", "status"],
            ["ctl", "watch", "--patience", "0"],
        )
        for command in words:
            assert main([*command, str(tmp_path / "run"), "--journal", url, "--json"]) in (0, 1, 3)
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    bundle, status, *_ = await anyio.to_thread.run_sync(shown)
    assert (bundle["seeds"], status["run"]) == (1, "run")


def write_fifo(path: Path) -> None:
    os.mkfifo(path)


def write_folder(path: Path) -> None:
    path.mkdir()


def write_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def write_link(path: Path) -> None:
    outside = path.parents[3] / "outside"
    outside.write_bytes(b"secret: words\n")
    path.symlink_to(outside)


FILES = {
    "journal.db": "other/journal.db",
    "settings.yaml": "other/settings.yaml: can't be read",
    "metrics.jsonl": "other/metrics.jsonl: can't be read",
    "rollouts/step_000003.jsonl.gz": "other/rollouts/step_000003.jsonl.gz: can't be read",
    "rollouts/step_000003.scores.npz": "other/rollouts/step_000003.scores.npz: can't be read",
    "gateway/episodes.db": "other/gateway/episodes.db: can't be read",
    "policy/tokenizer.json": "",
    ".lock": "",
}
"""Files of a training, and the beginning of the line about each; the last two are optional."""


@pytest.mark.promise("inspection:hostile-files")
@pytest.mark.parametrize("write", [write_fifo, write_folder, write_device, write_link])
@pytest.mark.parametrize("name", FILES)
def test_what_is_no_file_of_the_folder_is_one_line_and_the_other_runs_are_shown(
    name: str,
    write: Callable[[Path], None],
    two_runs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = two_runs / "other" / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    write(path)
    assert main(["bundle", str(two_runs), "-o", str(tmp_path / "page"), "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["seeds"] >= 1
    lines = [line for line in shown.err.splitlines() if str(two_runs) in line]
    assert len(lines) == bool(FILES[name])
    assert all(f"{two_runs}/{FILES[name]}" in line for line in lines)
    assert b"secret: words" not in b"".join(file.read_bytes() for file in (tmp_path / "page/data").iterdir())


@pytest.mark.promise("inspection:hostile-files")
def test_reports_and_locks_that_are_no_files_are_one_line_and_do_not_block(
    finished: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    for name in ("report.json", ".lock"):
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
    with open_runs(folder) as runs:
        trouble = runs.runs()[0].trouble
    assert trouble == f"{folder / 'report.json'}: can't be read: it is a FIFO, not a file"
    assert not is_output_active(folder)


@pytest.mark.promise("inspection:hostile-files")
@pytest.mark.parametrize("name", ["trees.jsonl", "trajectories.jsonl", "synthesized_qa.jsonl", "tasks.jsonl"])
@pytest.mark.parametrize("write", [write_fifo, write_folder, write_device, write_link])
def test_an_export_of_files_that_are_none_is_refused_in_one_line(
    name: str, write: Callable[[Path], None], finished: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "runs/deep/run"
    shutil.copytree(finished, folder)
    (folder / "journal.db").unlink()
    (folder / name).unlink(missing_ok=True)
    write(folder / name)
    with pytest.raises(ConfigurationError, match=f"{name}: can't be read: ") as refused:
        export_run(folder, "native", tmp_path / "export")
    assert "\n" not in str(refused.value)


@pytest.mark.promise("inspection:hostile-files")
def test_a_folder_behind_a_link_out_of_the_place_is_left_out_with_one_line(
    two_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (two_runs / "other").rename(tmp_path / "private")
    (two_runs / "link").symlink_to(tmp_path / "private")
    (two_runs / "loop").symlink_to(two_runs)
    assert main(["bundle", str(two_runs), "-o", str(tmp_path / "page"), "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["runs"] == 1
    (line,) = shown.err.splitlines()
    assert f"{two_runs / 'link'}: a link leads out of {two_runs}" in line


def bomb_of_rollouts(folder: Path, line: bytes) -> None:
    """Write a step with one group, in which a part is repeated; it packs to about a thousandth."""
    with gzip.open(folder / "rollouts/step_000003.jsonl.gz", "wb", 1) as file:
        head, repeated, tail = line.partition(b"-1,")
        file.write(b'{"step":3,"version":2,"taken":1,"pending":[],"dropped":{},"groups":1}\n' + head)
        chunk = repeated * (1 << 20)
        for _ in range(BOMB_BYTES // len(chunk)):
            file.write(chunk)
        file.write(b"-1" + tail + b"\n")


def bomb_of_floats(folder: Path) -> None:
    sample = b'{"task":"t","id":"a","reward":1.0,"calls":[],"turn_rewards":[-1,]}'
    bomb_of_rollouts(folder, b'{"number":0,"name":"t","samples":[' + sample + b"]}")


def bomb_of_text(folder: Path) -> None:
    with gzip.open(folder / "rollouts/step_000003.jsonl.gz", "wb", 1) as file:
        for _ in range(BOMB_BYTES >> 20):
            file.write(b" " * (1 << 20))


def bomb_of_lines(folder: Path) -> None:
    with gzip.open(folder / "rollouts/step_000003.jsonl.gz", "wb", 1) as file:
        for _ in range(BOMB_BYTES >> 20):
            file.write(b"\n" * (1 << 20))


def bomb_of_scores(folder: Path) -> None:
    names = ("samples", "calls", "advantages", "lengths", "log_probs")
    zeros = np.zeros(BOMB_BYTES // 16, np.float32)
    np.savez_compressed(folder / "rollouts/step_000003.scores.npz", **dict.fromkeys(names, zeros))


def bomb_of_settings(folder: Path) -> None:
    (folder / "settings.yaml").write_bytes(b"a: [" + b"0," * 5_000_000 + b"]")


@pytest.mark.promise("inspection:hostile-sizes")
@pytest.mark.parametrize(
    ("name", "limit"),
    [("settings.yaml", 128 << 10), ("metrics.jsonl", 64 << 20)],
)
def test_a_file_beyond_its_limit_is_one_line(name: str, limit: int, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / name).touch()
    os.truncate(folder / name, limit + 1)
    with open_runs(folder) as runs:
        trouble = runs.runs()[0].trouble
    assert trouble == f"{folder / name}: can't be read: it is larger than {limit:,} bytes"


@pytest.mark.promise("inspection:hostile-sizes")
def test_rows_of_journals_and_reports_have_limits(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    with closing(connect_read_only(folder / "journal.db")) as reader:
        assert reader.getlimit(sqlite3.SQLITE_LIMIT_LENGTH) == 256 << 20
    os.truncate(folder / "report.json", (4 << 20) + 1)
    with open_runs(folder) as runs:
        assert runs.runs()[0].trouble.endswith(
            "report.json: can't be read: it is larger than 4,194,304 bytes"
        )


MEASURED = """
import resource, sys
from agentflow.cli import main
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
main(["bundle", sys.argv[1], "-o", sys.argv[3] + "/normal", "--json"])
before = peak()
status = main(["bundle", sys.argv[2], "-o", sys.argv[3] + "/hostile", "--json"])
print(status, peak() - before)
"""


@pytest.mark.promise("inspection:hostile-sizes")
@pytest.mark.parametrize(
    "write", [bomb_of_text, bomb_of_floats, bomb_of_lines, bomb_of_scores, bomb_of_settings]
)
def test_a_small_file_that_unpacks_to_300_mb_takes_less_than_200_mb(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    write_run(tmp_path / "normal")
    write_run(tmp_path / "hostile")
    write(tmp_path / "hostile")
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, tmp_path / "normal", tmp_path / "hostile", tmp_path / "out"],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    status, memory = map(int, done.stdout.splitlines()[-1].split())
    assert memory < MAX_MEMORY
    if status:
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.promise("inspection:hostile-sizes")
def test_a_prompt_that_unpacks_to_300_mb_or_follows_itself_is_left_out(
    finished: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    with open_runs(folder) as runs:
        reader = runs.run(runs.runs()[0].id)
        seed = reader.seeds()[0].id
        call = reader.node(seed, "0").calls[0] if reader.node(seed, "0").calls else reader.calls(seed)[0]
    with closing(sqlite3.connect(folder / "journal.db")) as journal, journal:
        data = journal.execute("SELECT data FROM agentflow_blobs WHERE hash = ?", (call.prompt,)).fetchone()[
            0
        ]
        text = data if data.startswith(b"{") else zlib.decompress(data)
        packed = zlib.compress(text.rstrip(b"}") + b" " * BOMB_BYTES + b"}")
        cycle = msgspec.json.encode({**msgspec.json.decode(text), "before": call.prompt})
        journal.execute("UPDATE agentflow_blobs SET data = ? WHERE hash = ?", (packed, call.prompt))
    with open_runs(folder) as runs:
        detail = runs.run(runs.runs()[0].id).call(seed, call.key)
    assert (detail.prompt, detail.missing) == ((), "the journal has not all of it")
    with closing(sqlite3.connect(folder / "journal.db")) as journal, journal:
        journal.execute("UPDATE agentflow_blobs SET data = ? WHERE hash = ?", (cycle, call.prompt))
    with open_runs(folder) as runs:
        detail = runs.run(runs.runs()[0].id).call(seed, call.key)
    assert (detail.prompt, detail.missing) == ((), "the journal has not all of it")


ENDLESS = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT 1 FROM c) SELECT 7 AS version FROM c WHERE n = 2"
SCRIPTS = {
    "view": f"DROP TABLE agentflow_schema; CREATE VIEW agentflow_schema AS {ENDLESS}",
    "other view": f"CREATE VIEW other AS {ENDLESS}",
    "trigger": "CREATE TRIGGER t INSERT ON agentflow_runs BEGIN SELECT 1; END",
    "virtual table": "CREATE VIRTUAL TABLE v USING fts5(body)",
    "computed column": "ALTER TABLE agentflow_schema ADD COLUMN c AS (zeroblob(1000000000))",
    "forged": f"""
        PRAGMA writable_schema = ON;
        UPDATE sqlite_master SET sql = 'CREATE VIEW agentflow_rates AS {ENDLESS.replace("'", "''")}', rootpage = 0
        WHERE name = 'agentflow_rates'
    """,
}


@pytest.mark.promise("inspection:hostile-journals")
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_a_journal_with_statements_of_its_own_is_refused_in_one_line(
    script: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    with closing(sqlite3.connect(folder / "journal.db")) as journal:
        journal.executescript(script)
    for place in (folder, folder / "journal.db"):
        assert main(["bundle", str(place), "-o", str(tmp_path / "page")]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{folder / 'journal.db'}: " in line


@pytest.mark.promise("inspection:hostile-journals")
def test_an_endless_query_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agentflow._folder_files, "QUERY_SECONDS", 0.05)
    file = tmp_path / "journal.db"
    with closing(sqlite3.connect(file)) as journal, journal:
        journal.execute("CREATE TABLE t (a)")
    with closing(connect_read_only(file)) as reader, pytest.raises(sqlite3.OperationalError) as stopped:
        reader.execute(ENDLESS).fetchall()
    assert sqlite_reason(stopped.value).startswith("a query takes too long for the size of the file")


@pytest.mark.promise("inspection:hostile-journals")
@pytest.mark.parametrize("end", ["-wal", "-journal"])
def test_a_log_that_is_no_file_is_one_line(
    end: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    os.mkfifo(folder / f"journal.db{end}")
    assert main(["bundle", str(folder), "-o", str(tmp_path / "page")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("can't be read: it is a FIFO, not a file")


@pytest.mark.promise("inspection:hostile-journals")
def test_seeds_that_lead_back_to_themselves_do_not_keep_a_bundle_from_ending(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    with closing(sqlite3.connect(folder / "journal.db")) as journal, journal:
        (body,) = journal.execute("SELECT body FROM agentflow_seeds WHERE number = 0").fetchone()
        other = msgspec.json.encode({**msgspec.json.decode(body), "index": -1})
        journal.execute("UPDATE agentflow_seeds SET body = ? WHERE number = 0", (other,))
    assert main(["bundle", str(folder), "-o", str(tmp_path / "page")]) == 2
    assert "the record of seed 0 is damaged" in capsys.readouterr().err
