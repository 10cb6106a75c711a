"""Each promise of isolation holds, or not, exactly as the table says, on machines that lack a mechanism."""

from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from agentflow.doctor import DiagnosisState, examine
from runtimes.process import CONTAINMENT, LACKS, Lack, ProcessRuntime, containment_table
from tests.attacks._degraded import report_without
from tests.attacks.degraded_run import DegradedReport

if TYPE_CHECKING:
    from tests._plain_user import PlainUser

MODULE = "tests.attacks.degraded_run"
MACHINES: dict[str, tuple[Lack, ...]] = {
    "a complete machine": (),
    "no Landlock": ("landlock",),
    "no cgroups": ("cgroups", "cpu-cgroup"),
    "no Landlock and no cgroups": ("landlock", "cgroups", "cpu-cgroup"),
}
AUTOGROUP = Path("/proc/sys/kernel/sched_autogroup_enabled")
PAGE = Path(__file__).parents[2] / "docs" / "security.md"
pytestmark = pytest.mark.timeout(500)


def check(report: DegradedReport, lacks: set[Lack]) -> None:
    """Compare a report with the table."""
    if "cpu-cgroup" in lacks and AUTOGROUP.exists() and AUTOGROUP.read_text(encoding="utf-8") == "1\n":
        lacks = {*lacks, "autogroup"}
    assert set(report["lacks"]) == lacks
    declared = {promise.name: promise.effects(lacks) == [] for promise in CONTAINMENT}
    assert (report["holds"], report["seen"]) == (declared, {})


@pytest.mark.promise("attacks:degraded")
def test_each_promise_holds_as_declared_without_landlock_and_cgroups() -> None:
    lacks = MACHINES["no Landlock and no cgroups"]
    check(cast("DegradedReport", report_without(lacks, MODULE, main="main_short")), set(lacks))


@pytest.mark.soak
@pytest.mark.promise("attacks:degraded")
@pytest.mark.parametrize("machine", MACHINES)
def test_each_promise_holds_as_declared_on_a_degraded_machine(machine: str) -> None:
    lacks = MACHINES[machine]
    check(cast("DegradedReport", report_without(lacks, MODULE)), set(lacks))


@pytest.mark.soak
@pytest.mark.promise("attacks:degraded")
def test_each_promise_holds_as_declared_without_a_cgroup_for_the_cpu() -> None:
    if not Path("/sys/fs/cgroup/cpu").is_dir():
        pytest.skip("cgroups of version 2 have one folder for all controllers")
    check(cast("DegradedReport", report_without(("cpu-cgroup",), MODULE)), {"cpu-cgroup"})


@pytest.mark.soak
@pytest.mark.promise("attacks:degraded")
def test_each_promise_holds_as_declared_without_a_range_of_ids(plain_user: "PlainUser") -> None:
    report = cast("DegradedReport", report_without((), MODULE, plain_user))
    # An ordinary user can't create cgroups, except in a delegated one.
    lacks: set[Lack] = {"id-range"}
    if "cgroups" in report["lacks"]:
        lacks |= {"cgroups", "cpu-cgroup"}
    check(report, lacks)


@pytest.mark.promise("attacks:degraded")
def test_the_page_about_security_shows_the_table_of_the_source() -> None:
    assert containment_table() in PAGE.read_text(encoding="utf-8")


@pytest.mark.promise("attacks:degraded")
def test_every_cell_of_the_table_says_what_holds_instead() -> None:
    for promise in CONTAINMENT:
        assert set(promise.partly) | set(promise.lost) <= set(LACKS)
        assert not set(promise.partly) & set(promise.lost)
        assert all(text.strip() for text in (*promise.partly.values(), *promise.lost.values()))


@pytest.mark.promise("attacks:degraded")
async def test_the_doctor_shows_the_state_of_each_promise_on_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ProcessRuntime, "lacks", frozenset({"cgroups", "cpu-cgroup", "autogroup"}))
    found = {one.name: one for one in await examine(["containment"], {})}
    assert list(found) == [promise.name for promise in CONTAINMENT]
    assert found["host-files"].state is DiagnosisState.WORKS
    assert found["memory-limit"].state is DiagnosisState.PARTLY
    assert found["memory-limit"].text.startswith(
        "partly: each process is limited, and what it keeps outside of"
    )
    assert found["cpu-share"].state is DiagnosisState.MISSING
