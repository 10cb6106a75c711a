"""Attacks on servers, clients and readers of run folders: what their common cores promise holds."""

from pathlib import Path

import pytest

from tests.attacks import answers, connections, folders, images
from tests.attacks._table import Attack, not_contained

pytestmark = [pytest.mark.timeout(900), pytest.mark.promise("attacks:cores")]
FORMS = [False, pytest.param(True, marks=pytest.mark.soak)]


def table_of(attacks: list[Attack], *, soak: bool) -> list[Attack]:
    """Return the short form, or everything."""
    return [attack for attack in attacks if soak or not attack.soak]


@pytest.mark.parametrize("soak", FORMS)
async def test_no_connection_takes_a_server_from_others(tmp_path: Path, soak: bool) -> None:
    table = table_of(connections.ATTACKS, soak=soak)
    assert not_contained(table, await connections.observe(tmp_path, table)) == {}


@pytest.mark.parametrize("soak", FORMS)
async def test_no_answer_takes_a_client_from_its_program(soak: bool) -> None:
    table = table_of(answers.ATTACKS, soak=soak)
    assert not_contained(table, await answers.observe(table)) == {}


@pytest.mark.parametrize("soak", FORMS)
async def test_no_image_in_a_request_takes_a_gateway_from_others(tmp_path: Path, soak: bool) -> None:
    table = table_of(images.ATTACKS, soak=soak)
    assert not_contained(table, await images.observe(tmp_path, table)) == {}


@pytest.mark.parametrize("soak", FORMS)
def test_no_folder_shows_the_host_or_hides_other_runs(tmp_path: Path, soak: bool) -> None:
    table = table_of(folders.ATTACKS, soak=soak)
    assert not_contained(table, folders.observe(table, tmp_path)) == {}
