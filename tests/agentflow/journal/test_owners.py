"""Names of processes."""

import os
import subprocess
import sys

import pytest

from agentflow.journal import this_process
from agentflow.journal._owners import has_died


@pytest.mark.promise("journal:leases:dead")
def test_a_process_lives_until_its_end_even_if_nobody_has_taken_note_of_it() -> None:
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
def test_a_number_of_a_process_that_another_one_has_now_is_no_sign_of_life() -> None:
    place, pid, _ = this_process().split(":")
    assert not has_died(this_process())
    assert has_died(f"{place}:{pid}:1")


@pytest.mark.promise("journal:leases:dead")
@pytest.mark.parametrize(
    "owner", ["", "me", "elsewhere/boot/1:1:1", "a:b:c", "::", f"{this_process()[:5]}:x:1"]
)
def test_of_owners_elsewhere_nothing_is_known(owner: str) -> None:
    assert not has_died(owner)
