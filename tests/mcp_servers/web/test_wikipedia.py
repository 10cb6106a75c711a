"""Wikipedia: through the API of MediaWiki, and from a file."""

from pathlib import Path

import pytest
from libzim.writer import Creator, Hint, Item, StringProvider

from agentflow.errors import ConfigurationError, ErrorKind
from tests.mcp_servers.web._services import Services
from tests.mcp_servers.web._site import Site
from tests.mcp_servers.web._tools import rows, text_of, web_tools


@pytest.mark.promise("web:wikipedia")
async def test_a_query_lists_articles_and_reads_the_best_one(site: Site, services: Services) -> None:
    async with web_tools(site, **services.settings()) as web:
        result = await web.call("wikipedia", query="bru")
        assert result.data["hits"] == [
            {
                "title": "Bruck an der Mur",
                "snippet": "The Bruck an der Mur & more",
                "url": f"{services.url}/en/wiki/Bruck_an_der_Mur",
            }
        ]
        await web.data("wikipedia", query="bru", language="de")
        assert services.requests[-1][0] == "/de/w/api.php"
        nothing = await web.call("wikipedia", query="zzz")
        assert nothing.data == {"hits": [], "article": None}


@pytest.mark.promise("web:wikipedia")
async def test_a_title_reads_that_article_with_its_headings(site: Site, services: Services) -> None:
    async with web_tools(site, **services.settings(content_limit=500)) as web:
        result = await web.call("wikipedia", title="Kelder Bridge")
        article = result.data["article"]
        assert isinstance(article, dict)
        assert article["text"] == (
            "The bridge is in Kelder.\n\n\n## History\nBuilt in 1821.\n\n\n### Repairs\nIn 1955."
        )
        assert article["url"] == "https://en.wikipedia.org/wiki/Kelder_Bridge"
        assert text_of(result).startswith(
            "# Kelder Bridge\nhttps://en.wikipedia.org/wiki/Kelder_Bridge\n\nThe"
        )
        kind, message = await web.failure("wikipedia", title="Nowhere")
        assert (kind, "no article 'Nowhere'" in message) == (ErrorKind.NOT_FOUND, True)
        services.fails(200, '{"error": {"code": "x", "info": "Too many\\nvalues"}}')
        assert (await web.failure("wikipedia", title="a"))[1] == "Wikipedia: Too many values."


@pytest.mark.promise("web:wikipedia")
async def test_a_wrong_question_is_refused(site: Site, services: Services) -> None:
    async with web_tools(site, **services.settings()) as web:
        for arguments in (
            {},
            {"query": " "},
            {"query": "x", "language": "en.evil.example/#"},
            {"query": "x", "language": "EN"},
            {"title": "Kelder Bridge", "start": 9_999},
        ):
            assert (await web.failure("wikipedia", **arguments))[0] is ErrorKind.BAD_ARGUMENTS
    assert all(path == "/en/w/api.php" for path, _ in services.requests)


class PageText(Item):
    """An article of a file."""

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self.title, self.text = title, text

    def get_path(self) -> str:
        return self.title.replace(" ", "_")

    def get_title(self) -> str:
        return self.title

    def get_mimetype(self) -> str:
        return "text/html"

    def get_contentprovider(self) -> StringProvider:
        body = f"<h1>{self.title}</h1><p>{self.text}</p>"
        return StringProvider(f"<html><head><title>{self.title}</title></head><body>{body}</body></html>")

    def get_hints(self) -> dict[Hint, int]:
        return {Hint.FRONT_ARTICLE: True}


def zim_file(path: Path, *, indexed: bool = True) -> Path:
    """A ZIM file of two articles."""
    creator = Creator(path)
    if indexed:
        creator.config_indexing(True, "eng")
    with creator:
        creator.set_mainpath("Kelder_Bridge")
        creator.add_item(
            PageText("Kelder Bridge", "Anna Brook built it in 1821; see <a href='Anna_Brook'>her</a>.")
        )
        creator.add_item(PageText("Anna Brook", "She built the bridges of the north."))
        creator.add_metadata("Title", "Isles")
    return path


@pytest.mark.promise("web:zim")
@pytest.mark.parametrize("indexed", [True, False])
async def test_a_file_is_searched_and_read_without_a_network(
    site: Site, tmp_path: Path, indexed: bool
) -> None:
    path = zim_file(tmp_path / "isles.zim", indexed=indexed)
    async with web_tools(site, zim=str(path), wikipedia_url="http://127.0.0.1:9/") as web:
        result = await web.data("wikipedia", query="Kelder")
        assert rows(result["hits"])[0] == {
            "title": "Kelder Bridge",
            "snippet": "",
            "url": "zim://isles.zim/Kelder_Bridge",
        }
        article = result["article"]
        assert isinstance(article, dict)
        assert "Anna Brook built it in 1821" in article["text"]
        by_title = await web.data("wikipedia", title="Anna Brook")
        assert "bridges of the north" in str(by_title["article"])
        kind, message = await web.failure("wikipedia", title="Nowhere")
        assert (kind, "isles.zim has no article 'Nowhere'" in message) == (ErrorKind.NOT_FOUND, True)
    assert site.resolved == []


@pytest.mark.promise("web:zim")
async def test_a_file_that_can_not_be_used_is_refused_before_the_start(site: Site, tmp_path: Path) -> None:
    other = tmp_path / "other.zim"
    other.write_bytes(b"not a ZIM file" * 100)
    for path, expected in ((tmp_path / "none.zim", "there is no file"), (other, "is not a ZIM file")):
        with pytest.raises(ConfigurationError, match=expected):
            async with web_tools(site, zim=str(path)):
                pass
