"""Attacks by strangers are contained: runs, models, clusters, remote sandboxes, desktops, pages, MCP servers, hangs."""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from runtimes.process import ProcessRuntime
from tests.attacks import clusters, desktops, exports, external, hangs, models, pages, remote
from tests.attacks._table import Attack, not_contained
from tests.mcp_servers.browser._browsing import browsing_table
from tests.mcp_servers.browser._site import site as browsing_site

pytestmark = [pytest.mark.timeout(900), pytest.mark.promise("attacks:strangers")]
FORMS = [False, pytest.param(True, marks=pytest.mark.soak)]
TABLES = (exports, models, clusters, remote, desktops, pages, external, hangs)
PAGE = Path(__file__).parents[2] / "docs" / "security.md"
ROW = re.compile(r"^\| `(\w+)` \| .*? \| (\d+) \| (\d+) \| (\d+) \|", re.MULTILINE)


def part(table: list[Attack], *, soak: bool) -> list[Attack]:
    """Return the short form, or everything."""
    return [attack for attack in table if soak or not attack.soak]


@pytest.mark.parametrize("soak", FORMS)
def test_no_run_leads_an_export_astray_or_takes_a_role_in_its_rows(tmp_path: Path, soak: bool) -> None:
    table = part(exports.ATTACKS, soak=soak)
    assert not_contained(table, exports.observe(table, tmp_path)) == {}


def test_no_model_folder_makes_an_engine_run_code_or_wait(tmp_path: Path) -> None:
    table = part(models.ATTACKS, soak=False)
    assert not_contained(table, models.observe(table, tmp_path)) == {}


@pytest.mark.soak
def test_no_model_folder_runs_code_in_a_training() -> None:
    command = [sys.executable, "-m", "tests.attacks.models"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    assert not_contained(models.ATTACKS, json.loads(done.stdout)) == {}


async def test_no_address_is_taken_for_a_cluster() -> None:
    assert not_contained(clusters.ADDRESSES, await clusters.connect(clusters.ADDRESSES)) == {}


@pytest.mark.soak
def test_no_stranger_runs_a_function_in_the_ray_of_a_trainer(tmp_path: Path) -> None:
    assert not_contained(clusters.STRANGERS, clusters.visit(clusters.STRANGERS, tmp_path)) == {}


@pytest.mark.parametrize("soak", FORMS)
async def test_no_answer_of_a_remote_sandbox_misleads_its_runtime(soak: bool) -> None:
    table = part(remote.ATTACKS, soak=soak)
    assert not_contained(table, await remote.observe(table)) == {}


async def test_no_driver_of_a_desktop_misleads_its_runtime() -> None:
    table = part(desktops.ATTACKS, soak=False)
    assert not_contained(table, await desktops.answer(table)) == {}


@pytest.mark.soak
async def test_no_program_in_a_desktop_blocks_the_others() -> None:
    table = [attack for attack in desktops.ATTACKS if attack.soak]
    assert not_contained(table, await desktops.run_programs(table)) == {}


@pytest.mark.soak
async def test_no_page_reads_files_blocks_its_session_or_outlives_it() -> None:
    limits = {"action_seconds": 5, "navigation_seconds": 8, "script_seconds": 5, "settle_seconds": 1}
    async with (
        ProcessRuntime() as runtime,
        browsing_site() as site,
        browsing_table(site, runtime, **limits) as browsers,
    ):
        seen = await pages.observe(browsers, site, pages.ATTACKS)
    assert not_contained(pages.ATTACKS, seen) == {}


@pytest.mark.parametrize("soak", FORMS)
async def test_no_external_server_injects_floods_or_stops_others(tmp_path: Path, soak: bool) -> None:
    table = part(external.ATTACKS, soak=soak)
    assert not_contained(table, await external.observe(table, tmp_path)) == {}


async def test_a_tool_server_or_endpoint_that_never_answers_is_stopped_by_a_time_limit() -> None:
    assert not_contained(hangs.ATTACKS, await hangs.observe(hangs.ATTACKS)) == {}


def test_the_page_about_security_counts_the_attacks_by_category() -> None:
    every = [attack for module in TABLES for attack in module.ATTACKS]
    assert len({attack.id for attack in every}) == len(every)
    assert all(attack.aim and attack.code for attack in every if not attack.id.endswith("empty"))
    rows = {name: tuple(map(int, counts)) for name, *counts in ROW.findall(PAGE.read_text(encoding="utf-8"))}
    assert {name: tried for name, (tried, _, _) in rows.items()} == Counter(
        attack.category for attack in every
    )
    assert all(tried == held + repaired for tried, held, repaired in rows.values())
