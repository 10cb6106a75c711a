"""Children of the trusted processes, some of which a sandbox can make with `CLONE_PARENT`."""

import sys

import anyio
import pytest

# In a process of its own, because it reaps all children.
REAPING = """
import os, select
from runtimes.process.trusted._reactor import MAX_REAPED, child_exit_wakeup, ended_children

wakeup = child_exit_wakeup()
pids = set()
for number in range(2 * MAX_REAPED + 3):
    pid = os.fork()
    if pid == 0:
        os._exit(number % 100)
    pids.add(pid)
for pid in pids:
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
turns = []
while select.select([wakeup], [], [], 0)[0]:
    os.read(wakeup, 4096)
    ended = [pid for pid, _ in ended_children()]
    pids.difference_update(ended)
    turns.append(len(ended) / MAX_REAPED)
print(turns[:2], len(turns), len(pids))
"""


@pytest.mark.promise("instances:reaping")
async def test_a_flood_of_ended_children_is_reaped_in_turns() -> None:
    done = await anyio.run_process([sys.executable, "-c", REAPING])
    assert done.stdout == b"[1.0, 1.0] 3 0\n"
