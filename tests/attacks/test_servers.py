"""Attacks on the server, its tools and its settings are contained."""

from pathlib import Path

import pytest

from mcp_servers import HttpOptions, ToolTable
from mcp_servers.web._parsers import ParserPool
from runtimes.process import ProcessRuntime
from tests.attacks import data, documents, protocol, settings, web
from tests.attacks._table import Attack, not_contained
from tests.mcp_servers._counter import Counter
from tests.mcp_servers._serving import serving
from tests.mcp_servers.browser._browsing import browsing_table, new_session
from tests.mcp_servers.browser._site import site as browsing_site
from tests.mcp_servers.web._site import a_site

pytestmark = [pytest.mark.timeout(500), pytest.mark.promise("attacks:server")]
FORMS = [False, pytest.param(True, marks=pytest.mark.soak)]


def table_of(own: list[Attack], existing: list[Attack], *, soak: bool) -> list[Attack]:
    """Return the short form, or everything."""
    return [*own, *existing] if soak else [attack for attack in own if not attack.soak]


@pytest.mark.parametrize("soak", FORMS)
async def test_no_address_leads_the_web_tools_inside(soak: bool) -> None:
    table = table_of(web.ATTACKS, web.EXISTING, soak=soak)
    parsers = ParserPool(1)
    async with a_site(parsers) as site:
        seen = await web.observe(site, table)
    await parsers.close()
    assert not_contained(table, seen) == {}


@pytest.mark.soak
async def test_no_address_leads_the_browser_inside() -> None:
    async with (
        ProcessRuntime() as runtime,
        browsing_site() as site,
        browsing_table(site, runtime) as table,
    ):
        browsing = await new_session(table, site)
        seen = await web.open_in_browser(browsing, web.IN_BROWSER)
        await browsing.end()
    assert not_contained(web.IN_BROWSER, seen) == {}


@pytest.mark.parametrize("soak", FORMS)
async def test_no_query_leads_out_of_a_database(tmp_path: Path, soak: bool) -> None:
    table = table_of(data.ATTACKS, data.EXISTING, soak=soak)
    assert not_contained(table, await data.observe(table, tmp_path)) == {}


@pytest.mark.parametrize("soak", FORMS)
async def test_no_document_reads_another_file_or_takes_the_server(tmp_path: Path, soak: bool) -> None:
    table = table_of(documents.ATTACKS, documents.EXISTING, soak=soak)
    assert not_contained(table, await documents.observe(table, tmp_path)) == {}


async def test_no_request_gets_more_than_its_token_allows() -> None:
    async with (
        ToolTable([Counter()]) as table,
        serving(table, HttpOptions(port=0, tokens=protocol.TOKENS)) as server,
    ):
        seen = await protocol.observe(server, protocol.ATTACKS)
    assert not_contained(protocol.ATTACKS, seen) == {}


async def test_no_settings_run_code_or_read_files(tmp_path: Path) -> None:
    assert not_contained(settings.ATTACKS, await settings.observe(settings.ATTACKS, tmp_path)) == {}


def test_the_battery_has_as_many_attacks_as_promised() -> None:
    from tests.attacks import answers, connections, folders, runtime_run
    from tests.attacks._sandboxes import ATTACKS

    cores = [connections.ATTACKS, answers.ATTACKS, folders.ATTACKS]
    servers = [*cores, web.ATTACKS, data.ATTACKS, documents.ATTACKS, protocol.ATTACKS, settings.ATTACKS]
    every = [*ATTACKS, *runtime_run.ATTACKS, *(attack for table in servers for attack in table)]
    assert len({attack.id for attack in every}) == len(every) >= 2_000
    assert all(attack.aim and attack.code for attack in every if not attack.id.endswith("empty name"))
