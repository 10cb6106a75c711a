"""Names of processes."""

import os
import subprocess
import sys

import pytest

from agentflow.journal import this_process
from agentflow.journal._seeds import has_died


@pytest.mark.promise("journal:leases:dead")
def test_a_process_counts_as_alive_until_it_ends_even_as_a_zombie() -> None:
    script = "from agentflow.journal import this_process; print(this_process(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        owner = process.stdout.readline().strip()
        assert not has_died(owner)
        assert owner != this_process()
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert has_died(owner)
    assert has_died(owner)


@pytest.mark.promise("journal:leases:dead")
def test_a_reused_process_id_does_not_count_as_alive() -> None:
    place, pid, _ = this_process().split(":")
    assert not has_died(this_process())
    assert has_died(f"{place}:{pid}:1")


@pytest.mark.promise("journal:leases:dead")
@pytest.mark.parametrize(
    "owner", ["", "me", "elsewhere/boot/1:1:1", "a:b:c", "::", f"{this_process()[:5]}:x:1"]
)
def test_the_state_of_owners_on_other_machines_is_unknown(owner: str) -> None:
    assert not has_died(owner)
