"""Postgres server of the suite: a private cluster in a temporary folder, removed with the session."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psutil

from agentflow.serving._server import kept_port

__all__ = ["PostgresServer", "postgres_server"]

_SERVER_USER = "postgres"


class PostgresServer:
    """Running server that accepts everybody on this machine without a password, by socket or loopback."""

    def __init__(self, programs: Path, folder: Path, port: int) -> None:
        self._programs = programs
        self._folder = folder
        self._numbers = count(1)
        self.port = port
        """Its port on 127.0.0.1, reserved also while the server is stopped."""

    def new_database(self, folder: Path | None = None) -> str:
        """Return the URL of a new, empty database.

        :param folder: empty folder for its tables, instead of one beside those of the others.
        """
        name = f"test{next(self._numbers)}"
        here = ("--host", str(self._folder), "--port", str(self.port))
        if folder is not None:
            if os.geteuid() == 0:
                shutil.chown(folder, _SERVER_USER, _SERVER_USER)
            command = f"CREATE TABLESPACE {name} LOCATION '{folder}'"
            self._run("psql", *here, "--dbname", "postgres", "--command", command)
        self._run("createdb", *here, *(("--tablespace", name) if folder is not None else ()), name)
        return f"postgresql://{_SERVER_USER}@127.0.0.1:{self.port}/{name}"

    def by_socket(self, url: str) -> str:
        """Return the same database's URL by socket."""
        return f"postgresql://{_SERVER_USER}@/{url.rpartition('/')[2]}?host={self._folder}&port={self.port}"

    def start(self) -> None:
        """Start it; return when it answers."""
        self._run(
            *("pg_ctl", "start", "--wait", "--pgdata", str(self._folder / "data")),
            *("--log", str(self._folder / "log")),
        )

    def stop(self, mode: str = "fast") -> None:
        """Stop it; `immediate` acts like a power loss."""
        self._run("pg_ctl", "stop", "--wait", "--pgdata", str(self._folder / "data"), "--mode", mode)

    def kill(self) -> None:
        """Kill the server's first process with SIGKILL; return when the processes that served connections have ended."""
        first = psutil.Process(
            int((self._folder / "data/postmaster.pid").read_text(encoding="ascii").split()[0])
        )
        others = first.children(recursive=True)
        first.kill()
        # They end by themselves once they notice; a server does not start before.
        psutil.wait_procs([first, *others], timeout=60)

    def require_password(self, user: str, password: str) -> None:
        """Make a user who needs a password, and restart."""
        self._run(
            *("psql", "--host", str(self._folder), "--port", str(self.port), "--dbname", "postgres"),
            *("--command", f"CREATE ROLE {user} LOGIN PASSWORD '{password}'"),
        )
        self.stop()
        access = self._folder / "data/pg_hba.conf"
        rules = access.read_text(encoding="utf-8")
        access.write_text(f"host all {user} 127.0.0.1/32 scram-sha-256\n{rules}", encoding="utf-8")
        self.start()

    def make(self, *, durable: bool = False) -> None:
        """Create the cluster's files.

        :param durable: commits wait for the disk, as by default in Postgres.
        """
        self._run(
            *("initdb", "--pgdata", str(self._folder / "data"), "--username", _SERVER_USER),
            *("--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-sync"),
        )
        options = {
            "listen_addresses": "'127.0.0.1'",
            "port": self.port,
            "unix_socket_directories": f"'{self._folder}'",
            "fsync": "on" if durable else "off",
            "max_connections": 400,
            "max_prepared_transactions": 10,
        }
        with (self._folder / "data/postgresql.conf").open("a", encoding="utf-8") as file:
            file.writelines(f"{name} = {value}\n" for name, value in options.items())

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [
                self._programs / program,
                *arguments,
                *(("--username", _SERVER_USER) if program in ("createdb", "psql") else ()),
            ],
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            # Not a pipe: the server would inherit it and keep it open.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
            # Postgres refuses to run as root.
            user=_SERVER_USER if os.geteuid() == 0 else None,
        )
        assert done.returncode == 0, f"{program} {arguments[0]} ended with {done.returncode}"


@contextmanager
def postgres_server(*, durable: bool = False) -> Generator[PostgresServer]:
    """Run a server; stop and remove it at the end.

    :param durable: commits wait for the disk.
    """
    # Not one of pytest's folders: its socket needs a short path, and its user must be able to enter.
    folder = Path(tempfile.mkdtemp(prefix="agentflow-pg-"))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, pwd.getpwnam(_SERVER_USER).pw_uid, pwd.getpwnam(_SERVER_USER).pw_gid)
        with kept_port("127.0.0.1") as port:
            server = PostgresServer(_programs(), folder, port)
            server.make(durable=durable)
            server.start()
            try:
                yield server
            finally:
                server.stop("immediate")
    finally:
        shutil.rmtree(folder)


def _programs() -> Path:
    """Return the folder of the server's programs, which Debian keeps off the path."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("pg_ctl")
    assert found or on_path, "the tests need a Postgres server: install the package postgresql"
    return found[-1].parent if found else Path(str(on_path)).resolve().parent
