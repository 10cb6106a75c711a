"""Reading pages: in full, in parts, by goal or query; directly or through Jina Reader."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.errors import ErrorKind
from mcp_servers.web._parser_process import best_passages
from tests.mcp_servers.web._services import KEY, Services
from tests.mcp_servers.web._site import Site
from tests.mcp_servers.web._tools import Web, rows, text_of, web_tools

BRIDGE = """<!doctype html><title>The bridge of Kelder</title><article><h1>The bridge</h1>
<p>Anna Brook built the bridge of Kelder in 1821, and stayed there for the rest of her life.</p>
<h2>Measures</h2><p>It is 230 metres long and 40 metres high. <img src="/side.png" alt="From the side"></p>
<h2>Trains</h2><p>Twelve trains a day crossed it in 1900. <a href="/timetable">The timetable</a> is kept there.</p>
<h2>Weather</h2><p>In winter the wind is strong, and the bridge is closed for carts on some days of it.</p>
</article>"""


@pytest.fixture(scope="module")
def bridge(shared_site: Site) -> str:
    """The address of a page on a bridge."""
    return shared_site.add("isles.example/bridge", BRIDGE)


@pytest.mark.promise("web:visit")
async def test_pages_are_read_concurrently_and_a_failing_one_does_not_affect_others(
    shared_web: Web, bridge: str
) -> None:
    result = await shared_web.call("visit", urls=[bridge, "http://nowhere.example/", "http://10.0.0.1/"])
    first, second, third = rows(result.data["pages"])
    assert (first["title"], first["error"], first["next_start"]) == ("The bridge of Kelder", None, None)
    assert first["characters"] == len(str(first["text"]))
    assert first["links"] == [{"text": "The timetable", "url": "http://isles.example/timetable"}]
    assert "no such host" in str(second["error"])
    assert "private address" in str(third["error"])
    assert text_of(result).startswith("# The bridge of Kelder\nhttp://isles.example/bridge\n\n# The bridge")
    kind, _ = await shared_web.failure("visit", urls=["http://nowhere.example/", "http://10.0.0.1/"])
    assert kind is ErrorKind.NOT_FOUND


@pytest.mark.promise("web:visit:parts")
async def test_a_long_page_is_read_in_parts_that_join(site: Site) -> None:
    url = site.add("long.example/", "".join(f"line {n}\n" for n in range(300)), type="text/plain")
    async with web_tools(site, content_limit=700) as web:
        read, start = "", 0
        while start is not None:
            result = await web.call("visit", urls=url, start=start)
            (page,) = rows(result.data["pages"])
            assert len(str(page["text"])) <= 700
            read += str(page["text"])
            given_start = page["next_start"]
            assert given_start is None or isinstance(given_start, int)
            if given_start is not None:
                assert f"[the page continues at start={given_start}]" in text_of(result)
            start = given_start
        assert read == "\n".join(f"line {n}" for n in range(300))
        assert (await web.failure("visit", urls=url, start=100_000))[0] is ErrorKind.BAD_ARGUMENTS


@pytest.mark.promise("web:visit:goal")
async def test_without_a_model_a_goal_selects_passages_in_the_order_of_the_page(
    shared_web: Web, bridge: str
) -> None:
    whole = str((await shared_web.page(bridge))["text"])
    page = await shared_web.page(bridge, goal="How long is the bridge, in metres?")
    passages = rows(page["passages"])
    assert "230 metres" in str(max(passages, key=lambda passage: float(str(passage["score"])))["text"])
    assert [passage["start"] for passage in passages] == sorted(
        int(str(passage["start"])) for passage in passages
    )
    for passage in passages:
        assert whole[int(str(passage["start"])) : int(str(passage["end"]))] == passage["text"]
    assert "![From the side](http://isles.example/side.png)" in str(page["text"])
    assert page["note"] == "the passages that match the goal best"
    nothing = await shared_web.page(bridge, goal="submarine zebra")
    assert (nothing["text"], nothing["note"]) == ("", "no passage contains a word of the goal")


@pytest.mark.promise("web:visit:model")
async def test_a_model_extracts_the_text_for_a_goal(site: Site, services: Services) -> None:
    url = site.add("isles.example/bridge", BRIDGE)
    settings = services.settings(enable_llm_summary=True, summary_model="small", openai_api_key=KEY)
    async with web_tools(site, **settings) as web:
        page = await web.page(url, goal="its length")
        assert page["text"] == "It is 230 metres long. ![x](http://a.example/x.png)"
        assert (page["note"], page["passages"]) == ("extracted by small", [])
        (_, request), headers = services.requests[-1], services.headers[-1]
        assert (request["model"], headers["Authorization"]) == ("small", f"Bearer {KEY}")
        assert "its length" in str(request["messages"])
        services.fails(401, f"no {KEY}")
        fallen = await web.page(url, goal="its length in metres")
        assert "230 metres" in str(fallen["text"])
        assert "the model failed (the model returned status 401" in str(fallen["note"])
        assert KEY not in str(fallen)
        services.fails(200, '{"choices": []}')
        assert "the model returned nothing" in str((await web.page(url, goal="metres"))["note"])
        services.fails(200, '{"choices": [{"message": {"content": "<think>230?</think>\\nIt is long."}}]}')
        assert (await web.page(url, goal="how long"))["text"] == "It is long."
        services.fails(400, "'temperature' is not supported with this model")
        before = len(services.requests)
        await web.page(url, goal="how many metres")
    assert ["temperature" in request for _, request in services.requests[before:]] == [True, False]


@pytest.mark.promise("web:visit:jina")
async def test_jina_reads_a_page_where_it_is_chosen(site: Site, services: Services) -> None:
    site.add("public.example/x", "not asked for by us")
    settings = services.settings(visit_method="jina", jina_api_key=KEY)
    async with web_tools(site, **settings) as web:
        page = await web.page("http://public.example/x")
        assert (page["title"], page["text"]) == ("By Jina", "# By Jina\n\nThe whole page.")
        assert page["links"] == [{"text": "More", "url": "https://more.example/"}]
        assert services.requests == [("/jina/", {"url": "http://public.example/x"})]
        assert site.requests == []
        services.fails(402, '{"message": "Insufficient balance"}')
        kind, message = await web.failure("visit", urls="http://public.example/y")
        assert (kind, "Insufficient balance" in message) == (ErrorKind.FAILED, True)


@pytest.mark.promise("web:read")
async def test_a_query_finds_the_best_passages_of_a_page(shared_web: Web, bridge: str) -> None:
    whole = str((await shared_web.page(bridge))["text"])
    result = await shared_web.call("read", query="trains per day", url=bridge, count=2)
    passages = rows(result.data["passages"])
    assert "Twelve trains a day" in str(passages[0]["text"])
    for passage in passages:
        assert whole[int(str(passage["start"])) : int(str(passage["end"]))] == passage["text"]
    assert result.data["characters"] == len(whole)
    assert "Twelve trains" in text_of(result)
    nothing = await shared_web.call("read", query="zebra", url=bridge)
    assert nothing.data["passages"] == []
    assert "no passage contains a word" in text_of(nothing)


@pytest.mark.promise("web:read")
@given(st.text(alphabet="ab. \n#日本-", max_size=3_000), st.text(alphabet="ab日本 ", max_size=20))
def test_a_passage_is_the_text_at_its_position_and_has_a_query_word(text: str, query: str) -> None:
    passages = best_passages(text, query, 5)
    assert len(passages) <= 5
    assert [passage.score for passage in passages] == sorted(
        (passage.score for passage in passages), reverse=True
    )
    for passage in passages:
        assert text[passage.start : passage.end] == passage.text == passage.text.strip()
        assert 0 < len(passage.text) <= 1_000
        assert passage.score > 0
    spans = sorted((passage.start, passage.end) for passage in passages)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


@pytest.mark.promise("web:read")
def test_words_are_found_with_other_endings_and_accents_and_without_blanks() -> None:
    text = "The cities of Zürich.\n\n# Trains\n\nThey are building.\n\n# 東京\n\n東京都の人口は多い。"
    assert best_passages(text, "a city", 1)[0].text == "The cities of Zürich."
    assert best_passages(text, "ZURICH", 1)[0].text == "The cities of Zürich."
    assert best_passages(text, "builds", 1)[0].text == "# Trains\n\nThey are building."
    assert "人口" in best_passages(text, "東京の人口", 1)[0].text
