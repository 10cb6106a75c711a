"""A process is open to the other processes of its sandbox only when nothing trusted is left in it."""

from typing import cast

import pytest

from tests.runtimes.process.conftest import KINDS, Kind, Users

MODULE = "tests.runtimes.process.confinement_run"


@pytest.mark.promise("containment:confined-first")
@pytest.mark.parametrize(("kind", "processes"), [(KINDS[0], 5), (KINDS[2], 4)])
def test_no_process_can_be_rewritten_before_its_filter_is_in_place(
    users: Users, kind: Kind, processes: int
) -> None:
    steps = cast("list[dict[str, object]]", users.report(MODULE, kind))
    filters = [step for step in steps if step["call"] == "filter"]
    # The pause process, a command, a shell, a Python session, and a command of root inside.
    assert [(step["filtered"], step["readable"]) for step in filters] == [(False, False)] * processes
    # A program is open from its start; an interpreter that goes on running says so, with its filter and alone.
    opened = [step for step in steps if step["call"] == "open"]
    assert [(step["filtered"], step["trusted"]) for step in opened] == [(True, 0)]
