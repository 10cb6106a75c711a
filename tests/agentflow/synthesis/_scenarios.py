"""Small worlds to explore, one for each printed configuration: pages behind a search engine, documents, a shop."""

import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from aiohttp import web
from reportlab.lib.styles import getSampleStyleSheet
from reportlab.platypus import PageBreak, Paragraph, SimpleDocTemplate

from tests.agentflow.tasks._shop import shop_database, shop_files

ROOT = Path(__file__).parents[3]
PRINTED = Path(__file__).parent / "documented"
CONFIGS = ROOT / "configs/synthesis"
ISLES = "Explore Brenn Light"
SALES = "Sales of the shop: orders, prices and pieces"
SITE = "https://93.184.216.34/"
"""Public address, which needs no name service; the fake reader answers for it."""
PAGES = {
    "Brenn Light": "Brenn Light was designed by Ada Holm. Brenn Light was financed by Guild of Glaziers. Brenn Light has 214 steps.",
    "Ada Holm": "Ada Holm studied in Vessel Bay. Ada Holm married Karl Lind. Ada Holm painted 58 pictures.",
    "Guild of Glaziers": "Guild of Glaziers meets in Port Vannick. Guild of Glaziers owns 96 furnaces.",
    "Vessel Bay": "Vessel Bay belongs to Kelder Isle. Vessel Bay keeps 42 boats.",
    "Karl Lind": "Karl Lind commanded the Grey Petrel. Karl Lind wrote 7 books.",
    "Port Vannick": "Port Vannick honours Saint Orla. Port Vannick counts 88 warehouses.",
    "Grey Petrel": "Grey Petrel sank near Skerry Point. Grey Petrel carried 31 sailors.",
    "Kelder Isle": "Kelder Isle exports to Port Vannick. Kelder Isle has 12 villages.",
    "Skerry Point": "Skerry Point was charted by Mara Voss. Skerry Point shows 3 beacons.",
    "Saint Orla": "Saint Orla founded the Abbey of Tarn. Saint Orla sheltered 19 orphans.",
    "Mara Voss": "Mara Voss taught in Low Varn. Mara Voss drew 64 charts.",
}
"""Pages about the things of a few islands, by their titles."""


def address(title: str) -> str:
    """Return the address of a page."""
    return SITE + title.lower().replace(" ", "-")


def _links(text: str, own: str) -> str:
    return "\n".join(f"[{title}]({address(title)})" for title in PAGES if title != own and title in text)


def _ranked(query: str) -> list[str]:
    words = set(re.findall(r"\w+", query.lower()))
    return sorted(PAGES, key=lambda title: -len(words & set(re.findall(r"\w+", title.lower()))))


async def _search(request: web.Request) -> web.Response:
    query = str((await request.json())["q"])
    hits = [
        {
            "title": title,
            "link": address(title),
            "snippet": PAGES[title].partition(". ")[0] + ".",
            "position": n,
        }
        for n, title in enumerate(_ranked(query)[:3], 1)
    ]
    return web.json_response(
        {"searchParameters": {"q": query, "type": "search"}, "organic": hits, "credits": 1}
    )


async def _read(request: web.Request) -> web.Response:
    url = str((await request.json())["url"])
    title = next((title for title in PAGES if address(title) == url), None)
    if title is None:
        return web.json_response({"code": 422, "message": "no such page"}, status=422)
    content = f"# {title}\n\n{PAGES[title]}\n\n{_links(PAGES[title], title)}"
    data = {
        "title": title,
        "description": "",
        "url": url,
        "content": content,
        "links": {},
        "usage": {"tokens": 9},
    }
    return web.json_response({"code": 200, "status": 20000, "data": data})


async def _encyclopedia(request: web.Request) -> web.Response:
    """Answer as a MediaWiki API does: with articles about the same things."""
    if query := request.query.get("srsearch"):
        hits = [{"ns": 0, "title": title, "snippet": PAGES[title]} for title in _ranked(query)[:3]]
        return web.json_response({"batchcomplete": True, "query": {"search": hits}})
    title = request.query["titles"]
    page = {"ns": 0, "title": title, "missing": True}
    if title in PAGES:
        page = {"pageid": 1, "ns": 0, "title": title, "extract": PAGES[title], "fullurl": address(title)}
    return web.json_response({"batchcomplete": True, "query": {"pages": [page]}})


@asynccontextmanager
async def small_web() -> AsyncGenerator[str]:
    """Serve a search engine, a reader of pages and an encyclopedia, as the real services are documented."""
    application = web.Application()
    application.router.add_post("/serper/search", _search)
    application.router.add_post("/jina/", _read)
    application.router.add_get("/w/api.php", _encyclopedia)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class Scenario(NamedTuple):
    """A printed configuration, and the world that replaces its placeholders."""

    config: Path
    """File of the configuration."""
    seed: Mapping[str, object]
    """Its seed."""
    world: Callable[[Path, str], Mapping[str, object]]
    """Makes the world in a folder, with the address of the small web; returns replaced settings by their path."""
    kept: str = "synthesized_qa.jsonl"
    """File with data afterwards."""


def _no_world(folder: Path, services: str) -> Mapping[str, object]:
    return {}


def _web(folder: Path, services: str) -> Mapping[str, object]:
    own = {
        "serper_api_key": "k",
        "serper_url": f"{services}/serper",
        "visit_method": "jina",
        "jina_api_key": "k",
        "wikipedia_url": f"{services}/w/api.php",
    }
    return {"resource_init_configs.web": {**own, "jina_url": f"{services}/jina", "cache": None}}


def _full(folder: Path, services: str) -> Mapping[str, object]:
    return {**_web(folder, services), "sandbox_server_url": None}


def _documents(path: str) -> Callable[[Path, str], Mapping[str, object]]:
    def world(folder: Path, services: str) -> Mapping[str, object]:
        (folder / "documents").mkdir()
        for title, text in PAGES.items():
            (folder / f"documents/{title}.txt").write_text(text, encoding="utf-8")
        return {path: str(folder / "documents")}

    return world


def _document(path: str) -> Callable[[Path, str], Mapping[str, object]]:
    def world(folder: Path, services: str) -> Mapping[str, object]:
        style = getSampleStyleSheet()
        parts: list[Any] = []
        for title, text in PAGES.items():
            parts += [Paragraph(title, style["Heading1"]), Paragraph(text, style["BodyText"]), PageBreak()]
        SimpleDocTemplate(str(folder / "document.pdf")).build(parts)
        return {path: str(folder / "document.pdf")}

    return world


def _database(path: str, address: str) -> Callable[[Path, str], Mapping[str, object]]:
    def world(folder: Path, services: str) -> Mapping[str, object]:
        (folder / "data").mkdir()
        shop_database(folder / "data/example.db")
        return {path: address} if path else {}

    return world


def _data(path: str) -> Callable[[Path, str], Mapping[str, object]]:
    return lambda folder, services: {path: str(shop_files(folder / "data"))}


SCENARIOS = {
    "web": Scenario(PRINTED / "web.json", {"content": ISLES}, _web),
    "full": Scenario(PRINTED / "full.json", {"content": ISLES}, _full),
    "rag": Scenario(
        PRINTED / "rag.json",
        {"content": ISLES},
        _documents("resource_init_configs.knowledge_base.index_path"),
    ),
    "document": Scenario(
        PRINTED / "document.json", {"content": ISLES}, _document("resource_init_configs.document.file_path")
    ),
    # Its relative path is the printed one.
    "text2sql": Scenario(PRINTED / "text2sql.json", {"content": SALES}, _database("", "")),
    "data_analysis": Scenario(
        PRINTED / "data_analysis.json", {"content": SALES}, _data("resource_init_configs.filesystem.data_dir")
    ),
    "our web": Scenario(CONFIGS / "web.yaml", {"content": ISLES}, _web),
    "our web as JSON": Scenario(CONFIGS / "web_config.json", {"content": ISLES}, _web),
    "our deep research": Scenario(CONFIGS / "deep_research.yaml", {"content": ISLES}, _web),
    "our rag": Scenario(
        CONFIGS / "rag.yaml", {"content": ISLES}, _documents("resource_init_configs.rag.index_path")
    ),
    "our document": Scenario(
        CONFIGS / "document.yaml", {"content": ISLES}, _document("resource_init_configs.document.file")
    ),
    "our text2sql": Scenario(
        CONFIGS / "text2sql.yaml",
        {"content": SALES},
        _database("resource_init_configs.sql.databases.main", "data/example.db"),
    ),
    "our data analysis": Scenario(
        CONFIGS / "data_analysis.yaml", {"content": SALES}, _data("resource_init_configs.data.folder")
    ),
    "our analysis": Scenario(
        CONFIGS / "analysis.yaml", {"content": "Explore the light of Fern Island"}, _no_world
    ),
    "our terminal": Scenario(
        CONFIGS / "terminal.yaml", {"content": "Notes of a harbour master"}, _no_world, "tasks.jsonl"
    ),
    "our gui": Scenario(
        CONFIGS / "gui.yaml",
        {
            "content": "Count the lines of the reports, and put them away",
            "kwargs": {"command": "printf 'a\\nb\\n' > april.txt; printf 'c\\n' > june.txt"},
        },
        _no_world,
        "tasks.jsonl",
    ),
    "our embodied": Scenario(
        CONFIGS / "embodied.yaml",
        {"content": "A household", "kwargs": {"seed": 5, "task": "find"}},
        _no_world,
        "tasks.jsonl",
    ),
}
"""Printed configurations by name; those of the files in `configs` begin with `our`."""


def write_settings(scenario: Scenario, folder: Path, services: str, **models: object) -> Path:
    """Write the settings of a scenario and its seeds into a folder, each placeholder replaced; return the file."""
    text = scenario.config.read_text(encoding="utf-8")
    said: dict[str, Any] = yaml.safe_load(text)  # JSON is YAML
    for path, value in {**scenario.world(folder, services), **models}.items():
        *outer, name = path.split(".")
        own = said
        for part in outer:
            own = own.setdefault(part, {})
        own[name] = value
    (folder / "seeds.jsonl").write_text(json.dumps(scenario.seed) + "\n", encoding="utf-8")
    file = folder / f"config{scenario.config.suffix}"
    file.write_text(json.dumps(said), encoding="utf-8")
    return file
