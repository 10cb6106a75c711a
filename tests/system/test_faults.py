"""Whole runs by the real command while models, tools, disks and databases fail."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any, NamedTuple

import pytest

from agentflow.synthesis import PAIRS
from tests._postgres import PostgresServer, postgres_server
from tests.agentflow.cli._programs import environment, finish, running
from tests.system._flaky import failure_of
from tests.system._supervised import (
    PROGRAM,
    Endpoint,
    calls_of,
    contents,
    endpoint,
    follow,
    moment,
    settings,
    spent_in,
    supervise,
    supervise_until_done,
    trees_of,
    undisturbed,
)

SHARE = 0.3
AWAY_SECONDS = 10
SEEDS = 12
CHILDREN = (2, 2, 1, 1)
ROLES = {
    "plan": "planner",
    "node": "verifier",
    "propose": "generator",
    "repair": "generator",
    "hidden": "reader",
    "hidden2": "reader",
    "evidence": "reader",
    "others": "reader",
    "recall": "learner",
}
"""Roles by the first part of the keys of their calls."""
CALLS = tuple(ROLES)


def nodes_of(trees: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Return all nodes except the roots."""
    return (node for tree in trees for node in tree["nodes"] if node["action"] is not None)


def usage_of(folder: Path) -> dict[str, dict[str, int]]:
    """Return the usage of the recorded calls, by role."""
    used: dict[str, Counter[str]] = {}
    for kind, role in ROLES.items():
        for call in calls_of(folder, kind).values():
            used.setdefault(role, Counter()).update(call["usage"])
    return {role: dict(counted) for role, counted in used.items() if counted["calls"]}


def check_accounts(folder: Path, report: Mapping[str, Any]) -> None:
    """Check that the report counts every event once."""
    trees = trees_of(folder)
    nodes = list(nodes_of(trees))
    assert report["trees"] == len(trees) == report["seeds"] - report["failed_seeds"]
    assert report["nodes"] == len(nodes)
    assert report["verdicts"] == Counter(node["verdict"] for node in nodes)
    assert report["tool_failures"] == Counter(node["failure"]["kind"] for node in nodes if "failure" in node)
    assert report["stalled"] == sum(len(tree["stalled"]) for tree in trees)
    assert report["duplicates"] == sum(tree["duplicates"] for tree in trees)
    failed = [call["failure"]["kind"] for call in calls_of(folder, *CALLS).values() if call.get("failure")]
    assert report["model_failures"] == Counter(failed)
    reported = {role: used for role, used in report["usage"].items() if used["calls"]}
    assert reported == usage_of(folder)
    for role, spent in spent_in(folder).items():
        assert all(spent[name] >= number for name, number in reported.get(role, {}).items())
    pairs = (folder / PAIRS).read_text(encoding="utf-8").splitlines()
    assert report["pairs"] == len(pairs) == sum(report["kinds"].values())
    for tree in trees:
        for node in tree["nodes"]:
            depth: int = node["depth"]
            if node["verdict"] != "new":
                # One child may repair a failure; it is stalled if nothing new was proposed.
                assert len(node["children_ids"]) <= (node["node_id"] not in tree["stalled"])
                continue
            wanted = CHILDREN[depth] if depth < len(CHILDREN) else 0
            assert (len(node["children_ids"]) < wanted) is (node["node_id"] in tree["stalled"])


@pytest.mark.promise("system:faults")
def test_a_run_with_30_percent_failing_model_and_tool_calls_accounts_for_everything(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "out"
    words = settings(tmp_path, share=SHARE, seeds=SEEDS, verifier="model")
    with endpoint(faults=SHARE) as at:
        ended, times = supervise_until_done(tmp_path, *words, *at.words)
        counted = at.stats()
        again = supervise(tmp_path, *words, *at.words)
        assert again.said["nothing_to_do"]
        assert at.stats() == counted
    assert (ended.report["seeds"], ended.report["failed_seeds"]) == (SEEDS, 0)
    assert ended.report["pairs"] > 0
    check_accounts(folder, ended.report)
    for node in nodes_of(trees_of(folder)):
        kind = failure_of(node["action"]["args"]["query"], SHARE)
        assert (node["verdict"] == "error") >= (kind is not None)
        assert node.get("failure", {}).get("kind") == kind
    asked = [
        call for call in calls_of(folder, *CALLS).values() if call["usage"]["calls"] or call.get("failure")
    ]
    assert counted["most_per_body"] <= 4 * times
    # Two trees may arrive at the same question, which is asked in the same words, and each call has up to four attempts.
    same = len(asked) - counted["distinct_bodies"]
    assert same >= 0
    assert counted["repeated_bodies"] <= 4 * same
    assert counted["faults"] > len(asked) * SHARE


@pytest.mark.promise("system:faults:all")
def test_a_run_whose_model_calls_all_fail_ends_with_the_reason(tmp_path: Path) -> None:
    words = settings(tmp_path)
    with endpoint(down_after=0) as at:
        ended = supervise(tmp_path, *words, *at.words, status=3)
        assert at.stats()["most_per_body"] == 4
    line = "agentflow: 6 of 6 seeds are left: fake: no answer: the connection was closed (4 attempts); "
    assert f"{line}run the same command again to retry\n" in ended.err
    assert (ended.report["seeds"], ended.report["trees"]) == (0, 0)
    with endpoint() as at:
        supervise(tmp_path, *words, *at.words)
    assert contents(tmp_path / "out") == undisturbed().files


@pytest.mark.promise("system:faults:all")
def test_with_every_tool_call_failing_no_pair_is_written_and_the_report_says_why(tmp_path: Path) -> None:
    with endpoint() as at:
        ended = supervise(tmp_path, *settings(tmp_path, share=1.0), *at.words)
    check_accounts(tmp_path / "out", ended.report)
    assert (tmp_path / "out" / PAIRS).read_bytes() == b""
    assert ended.report["verdicts"].keys() == {"error"}
    count = ended.report["verdicts"]["error"]
    assert ended.report["why_empty"].startswith(f"all {count} tool calls failed, so there is no evidence: ")


@pytest.mark.promise("system:faults:same")
def test_the_report_names_the_nodes_whose_planner_only_repeated_itself(
    tmp_path: Path,
) -> None:
    with endpoint(same=True) as at:
        ended = supervise(tmp_path, *settings(tmp_path), *at.words)
    check_accounts(tmp_path / "out", ended.report)
    reasons = [why for tree in trees_of(tmp_path / "out") for why in tree["stalled"].values()]
    assert len(reasons) == ended.report["stalled"] > 0
    assert {why.partition(": ")[2] for why in reasons} == {"nothing new to try"}


@pytest.mark.promise("system:faults:disk")
def test_a_full_disk_ends_the_run_with_one_line_and_the_same_command_resumes_it(
    tmp_path: Path,
) -> None:
    words = settings(tmp_path)
    disk = tmp_path / "out"
    disk.mkdir()
    # A small disk that only these programs see: the run fills it, then space is freed, and the same command resumes.
    script = """
        mount -t tmpfs -o size=64m none out && head -c 66700000 /dev/zero > out/ballast || exit 90
        "$@" 2> first.err; echo $? > first.status
        rm out/ballast
        "$@" 2> second.err; echo $? > second.status
        cp -r out copy
    """
    with endpoint() as at:
        command = (sys.executable, "-m", PROGRAM, "--json", *words, *at.words)
        done = subprocess.run(
            ["unshare", "--mount", "--map-root-user", "sh", "-c", script, "sh", *command],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert done.returncode == 0, done.stderr
    first = (tmp_path / "first.err").read_text(encoding="utf-8")
    assert (tmp_path / "first.status").read_text(encoding="utf-8") == "3\n", first
    last = [line for line in first.splitlines() if line.startswith("agentflow: ")]
    assert len(last) == 1
    assert "no room is left" in last[0]
    assert "run the same command again" in last[0]
    assert "Traceback" not in first
    assert (tmp_path / "second.status").read_text(encoding="utf-8") == "0\n"
    assert contents(tmp_path / "copy") == undisturbed().files


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """Server that this test may stop."""
    with postgres_server() as server:
        yield server


class Away(NamedTuple):
    """A synthesis whose database was killed."""

    process: Popen[str]
    """Its process."""
    at: Endpoint
    """Its endpoint, which holds back a call."""
    words: tuple[str, ...]
    """Its arguments."""


@contextmanager
def without_database(server: PostgresServer, folder: Path) -> Generator[Away]:
    """Run a synthesis, and kill its database while a call is in flight."""
    url = server.new_database()
    with endpoint(hold_after=15) as at:
        words = (*settings(folder), *at.words, f"journal={url}")
        with running(PROGRAM, "--json", *words, cwd=folder, python=sys.executable) as process:
            at.wait_for(calls=16)
            server.kill()
            yield Away(process, at, words)


@pytest.mark.promise("system:faults:postgres")
@pytest.mark.parametrize("seconds", [0, AWAY_SECONDS])
def test_a_run_survives_a_kill_of_its_database_and_does_nothing_twice(
    seconds: int, own_postgres: PostgresServer, tmp_path: Path
) -> None:
    with without_database(own_postgres, tmp_path) as away:
        away.at.release()
        gone = moment(follow(away.process, lambda line: "does not answer" in line["event"]))
        if seconds:
            follow(away.process, lambda line: moment(line) >= gone + seconds)
        own_postgres.start()
        status, out, err = finish(away.process)
        assert status == 0, err
        assert away.at.stats()["most_per_body"] == 1, "nothing was asked again"
    assert json.loads(out)["report"]["seeds"] == 6
    assert contents(tmp_path / "out") == undisturbed().files


@pytest.mark.promise("system:faults:postgres")
def test_a_run_that_is_killed_together_with_its_database_is_resumed_by_the_same_command(
    own_postgres: PostgresServer, tmp_path: Path
) -> None:
    with without_database(own_postgres, tmp_path) as away:
        away.process.kill()
        away.process.wait()
        away.at.release()
        own_postgres.start()
        supervise(tmp_path, *away.words)
    assert contents(tmp_path / "out") == undisturbed().files
