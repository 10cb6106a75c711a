"""Every printed configuration keeps data: by the real command, with real tools and the fake endpoint."""

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

from agentflow.cli import main
from agentflow.testing import fake_endpoint
from tests._postgres import PostgresServer
from tests.agentflow.synthesis._scenarios import CONFIGS, PRINTED, SCENARIOS, small_web, write_settings
from tests.agentflow.tasks._shop import shop_script
from tests.mcp_servers.sql._asking import connected, databases_of, make_postgres

DOCUMENTED_MODEL = "gpt-4.1-2025-04-14"
KEYS = ("SERPER_API_KEY", "JINA_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY", "SEARXNG_URL", "OPENAI_API_KEY")


class Services(NamedTuple):
    """Addresses of the fake services."""

    model: str
    web: str


@pytest.fixture(scope="module")
def services() -> Generator[Services]:
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(fake_endpoint()) as model,
        portal.wrap_async_context_manager(small_web()) as web,
    ):
        yield Services(model, web)


def records(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def synthesize(name: str, folder: Path, services: Services, *words: str) -> list[dict[str, Any]]:
    """Run a scenario by the command in a folder and return the data that it kept."""
    scenario = SCENARIOS[name]
    config = write_settings(scenario, folder, services.web, base_url=services.model, api_key="x")
    more = ("seeds_file=seeds.jsonl", "output_dir=out", "control=false", *words)
    assert main(["synth", "--config", config.name, *more]) == 0
    report = json.loads((folder / "out/report.json").read_text(encoding="utf-8"))
    assert report["why_empty"] == ""
    return records(folder / "out" / scenario.kept)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.promise("synthesis:scenarios")
def test_the_table_of_this_test_names_every_printed_configuration() -> None:
    named = {scenario.config for scenario in SCENARIOS.values()}
    assert named >= set(PRINTED.glob("*.json"))
    # That of the offline engine needs no endpoint; pictures have a test of their own.
    others = {"corpus.yaml", "document_pictures.yaml"}
    assert {path.name for path in set(CONFIGS.iterdir()) - named} == others


@pytest.mark.promise("synthesis:scenarios")
@pytest.mark.parametrize(
    "name",
    [
        name if not name.startswith("our") else pytest.param(name, marks=pytest.mark.soak)
        for name in SCENARIOS
    ],
)
def test_a_printed_configuration_keeps_data(name: str, folder: Path, services: Services) -> None:
    kept = synthesize(name, folder, services)
    assert len(kept) >= 2 or "tasks" in SCENARIOS[name].kept, kept
    assert kept
    paths = {path["trajectory_id"] for path in records(folder / "out/trajectories.jsonl")}
    for pair in kept if "tasks" not in SCENARIOS[name].kept else ():
        assert pair["question"].endswith(("?", "."))
        assert pair["answer"]
        assert pair["trajectory_id"] in paths
        assert len(pair["reasoning_steps"]) >= 3
        assert pair["metadata"]["engine"] == DOCUMENTED_MODEL


@pytest.mark.promise("synthesis:scenarios")
def test_the_printed_text2sql_keeps_tasks_of_a_postgres_database(
    folder: Path, services: Services, postgres: PostgresServer
) -> None:
    url = anyio.run(make_postgres, postgres, shop_script())
    address = f"resource_init_configs.database.connection_string={url}"
    kept = synthesize("text2sql", folder, services, address, "max_depth=2")
    assert {pair["metadata"]["kind"] for pair in kept} == {"text2sql"}
    [task, *_] = records(folder / "out/tasks.jsonl")
    assert (task["metadata"]["engine"], len(task["verifier"])) == ("postgres", 4)
    assert anyio.run(databases_of, url) == []


@pytest.mark.promise("synthesis:scenarios:refused")
def test_a_postgres_database_that_others_use_is_refused_in_one_line(
    folder: Path, services: Services, postgres: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    url = anyio.run(make_postgres, postgres, shop_script())
    config = write_settings(SCENARIOS["text2sql"], folder, services.web, base_url=services.model, api_key="x")
    words = (
        f"resource_init_configs.database.connection_string={url}",
        "seeds_file=seeds.jsonl",
        "control=false",
    )
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(connected(url)):
        assert main(["synth", "--config", config.name, *words]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("agentflow:")]
    assert "tasks: text2sql can't copy the database" in line
    assert "close its other clients" in line
