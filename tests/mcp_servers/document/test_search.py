"""Searching and reading of documents."""

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_servers.document._document import DocumentContent, ParsedDocument, limit_spans, page_numbers
from mcp_servers.document._search import MAX_PASSAGE, PassageIndex, highlights, terms_in, terms_of_query
from tests.mcp_servers.document import _made
from tests.mcp_servers.document._reading import Reader, images, shown_text

WORDS = (
    "ships",
    "Ünïcödé",
    "湾岸的灰色船只",
    "שלום",
    "a",
    "mast.",
    "\n\n",
    "\n",
    "ｗｉｄｅ",
    "e\u0301",
    "🚢",
    "x" * 300,
)
TEXTS = st.lists(st.sampled_from(WORDS), max_size=200).map(" ".join)


def document(text: str, pages: list[int] | None = None, starts: list[int] | None = None) -> ParsedDocument:
    sections = [(f"Part {index}", 1 + index % 3, start) for index, start in enumerate(starts or [])]
    return ParsedDocument("digest", DocumentContent("text", "", text, pages or [], sections, [], [], []))


@st.composite
def documents(draw: st.DrawFn) -> ParsedDocument:
    text = draw(TEXTS)
    positions = st.lists(st.integers(0, len(text)), max_size=6).map(sorted)
    pages = draw(positions)
    return document(text, [0, *pages] if pages else [], draw(positions))


@pytest.mark.promise("document:search")
async def test_a_hit_reads_back_the_same_text(reader: Reader) -> None:
    hits = await reader.rows("search", "hits", query="masts and boilers of ships")
    assert len(hits) == 10
    for hit in hits:
        where = {"document": hit["document"], "start": hit["start"], "end": hit["end"]}
        (part,) = await reader.rows("read", "parts", **where)
        assert part["text"] == hit["text"]
        assert (part["section"], part["title"], part["page"]) == (hit["section"], hit["title"], hit["page"])
    assert {hit["document"] for hit in hits} >= {"ships.docx", "book.pdf"}


@pytest.mark.promise("document:search")
async def test_a_hit_highlights_query_words_and_gives_its_position(reader: Reader) -> None:
    (hit,) = await reader.rows("search", "hits", query="boilers", max_results=1)
    assert (hit["document"], hit["section"], hit["title"]) == ("ships.docx", "2.1", "Boilers")
    (begin, end), start = cast("list[tuple[int, int]]", hit["highlights"])[0], cast("int", hit["start"])
    assert str(hit["text"])[begin - start : end - start] == "Boilers"
    result = await reader.call("search", query="line 7 of page 2", document="book.pdf", max_results=1)
    assert shown_text(result).startswith("book.pdf [2] Chapter 2, page 2, ")


@pytest.mark.promise("document:languages")
@pytest.mark.parametrize("query", [_made.CHINESE, _made.CHINESE[3:5], _made.HEBREW, "SLOOPS masted"])
async def test_words_of_any_script_are_found(reader: Reader, query: str) -> None:
    assert "ships.docx" in [hit["document"] for hit in await reader.rows("search", "hits", query=query)]


@pytest.mark.promise("document:documented")
async def test_the_documented_names_of_arguments_work(reader: Reader) -> None:
    hits = await reader.rows("search", "hits", key_words=["boiler", "harbour"], max_search_results=2)
    assert len(hits) == 2
    read = await reader.data(
        "read", document="ships.docx", section_ids=["1", "2.1"], max_image_num=0, max_text_token=50
    )
    assert [part["section"] for part in cast("list[dict[str, object]]", read["parts"])] == ["1", "2.1"]
    kind, message = await reader.failure("search", key_wrods="x")
    assert kind == "bad_arguments"
    assert "key_wrods" in message


@pytest.mark.promise("document:read")
async def test_reading_continues_at_next_start(reader: Reader) -> None:
    read, start = "", 0
    while True:
        data = await reader.data("read", document="book.pdf", start=start, max_tokens=100)
        (part,) = cast("list[dict[str, object]]", data["parts"])
        read += str(part["text"])
        if data["next_start"] is None:
            break
        start = cast("int", data["next_start"])
    assert read == await reader.text(document="book.pdf")


@pytest.mark.promise("document:read:goal")
async def test_for_a_goal_the_passages_that_serve_it_are_read_with_pictures_of_their_pages(
    reader: Reader,
) -> None:
    whole = (await reader.data("outline", document="book.pdf"))["characters"]
    result = await reader.call("read", document="book.pdf", goal="Vannick 3", max_tokens=200)
    parts = cast("list[dict[str, object]]", result.data["parts"])
    assert [part["page"] for part in parts] == [3]
    assert sum(len(str(part["text"])) for part in parts) < cast("int", whole) / 2
    assert [data[:4] for data in images(result)] == [b"\x89PNG"]
    assert result.data["images"] == 1
    nothing = await reader.data("read", document="book.pdf", goal="zeppelin", max_image_num=0)
    assert "beginning" in str(nothing["note"])


@pytest.mark.promise("document:page-image")
async def test_a_page_is_shown_as_a_picture(reader: Reader) -> None:
    result = await reader.call("page_image", document="book.pdf", page=2, dpi=72)
    assert result.data == {"document": "book.pdf", "page": 2, "width": 596, "height": 842, "dpi": 72}
    assert [data[:4] for data in images(result)] == [b"\x89PNG"]
    sign = await reader.call("page_image", document="sign.png", page=1)
    assert (sign.data["width"], sign.data["height"]) == (600, 120)
    assert await reader.failure("page_image", document="book.pdf", page=4) == (
        "not_found",
        "document: 'book.pdf': it has no page 4, only 3.",
    )
    kind, message = await reader.failure("page_image", document="ships.docx", page=1)
    assert kind == "bad_arguments"
    assert "only pages of PDF files and images" in message


@pytest.mark.promise("document:names")
async def test_a_wrong_name_section_page_or_place_is_a_typed_failure_that_helps(reader: Reader) -> None:
    assert await reader.failure("read", document="boook.pdf") == (
        "not_found",
        "document: no document 'boook.pdf'. Did you mean 'book.pdf'?",
    )
    for wrong in ("../shelf/book.pdf", "/etc/passwd", "program.bin", ".hidden.md", "a\0b", ""):
        assert (await reader.failure("read", document=wrong))[0] == "not_found"
    kind, message = await reader.failure("read")
    assert kind == "bad_arguments"
    assert "name one" in message
    assert (await reader.failure("read", document="book.pdf", section_ids="9"))[0] == "not_found"
    assert (await reader.failure("read", document="book.pdf", pages="2-x"))[0] == "bad_arguments"
    assert (await reader.failure("read", document="book.pdf", pages="7"))[0] == "not_found"
    assert (await reader.failure("read", document="ships.docx", pages="1"))[0] == "not_found"
    assert (await reader.failure("read", document="book.pdf", start=10**9))[0] == "bad_arguments"
    assert (await reader.failure("read", document="book.pdf", start=5, end=5))[0] == "bad_arguments"
    assert (await reader.failure("read", document="book.pdf", start=5, pages=1))[0] == "bad_arguments"


@pytest.mark.promise("document:outline")
async def test_the_documents_are_listed_and_then_outlined(reader: Reader) -> None:
    listed = [entry["document"] for entry in await reader.rows("outline", "documents")]
    assert listed == sorted(
        ["book.pdf", "dues.html", "fleet.pptx", "languages.pdf", "notes/dues.md", "outlined.pdf", "plain.txt",
         "sales.xlsx", "ships.docx", "sign.png"]
    )  # fmt: skip
    flat = await reader.data("outline", document="ships.docx", depth=1, max_sections=2)
    assert [entry["id"] for entry in cast("list[dict[str, object]]", flat["sections"])] == ["0", "1"]
    assert flat["total_sections"] == 3
    shown = shown_text(await reader.call("outline", document="ships.docx"))
    assert "\n  [1.1] Rigs (" in shown


@pytest.mark.promise("document:search")
@given(documents(), st.lists(st.sampled_from(WORDS), min_size=1, max_size=3))
def test_every_passage_and_mark_lies_where_it_says(parsed: ParsedDocument, queries: list[str]) -> None:
    for match in PassageIndex([parsed]).search(queries, 50):
        _, start, end = match.passage
        text = parsed.text[start:end]
        assert text == text.strip()
        assert 0 < len(text) <= MAX_PASSAGE
        node = parsed.node_at(start)
        assert node.start <= start < end <= node.end
        assert parsed.page_at(start) == parsed.page_at(end - 1)
        for begin, stop in highlights(text, queries, start):
            assert start <= begin < stop <= end
            assert {term.text for term in terms_in(parsed.text[begin:stop])} & set(
                terms_of_query(" ".join(queries))
            )


@pytest.mark.promise("document:search")
@given(TEXTS)
def test_no_word_of_a_text_is_left_out_of_its_passages(text: str) -> None:
    parsed = document(text)
    passages = [match.passage for match in PassageIndex([parsed]).search([text], 10_000)]
    assert "".join(text.split()) == "".join(
        "".join(text[start:end].split()) for _, start, end in sorted(passages)
    ) or not all(terms_of_query(line) for line in text.split("\n"))


@given(TEXTS, st.integers(1, 200), st.integers(0, 50))
def test_reading_on_joins_to_the_whole(text: str, tokens: int, start: int) -> None:
    parsed, read, position = document(text), "", min(start, len(text))
    first = position
    while position < len(text):
        spans, following = limit_spans([(position, len(text))], tokens, parsed)
        read += "".join(text[begin:end] for begin, end in spans)
        if following is None:
            break
        assert following > position
        position = following
    assert read == text[first:]


@given(st.lists(st.integers(1, 60), max_size=30), st.integers(0, 5))
def test_sections_lie_in_each_other_and_cover_the_text(starts: list[int], blank: int) -> None:
    text = " " * blank + "x" * 80
    nodes = document(text, starts=sorted(starts)).nodes
    ids = [node.id for node in nodes]
    assert len(set(ids)) == len(ids)
    by_id = {node.id: node for node in nodes}
    for node in nodes:
        parent = by_id.get(node.id.rpartition(".")[0])
        assert node.level == 1 + node.id.count(".")
        if parent is not None:
            assert parent.start <= node.start <= node.end <= parent.end
    assert max(node.end for node in nodes) == len(text)


def test_page_numbers_are_read_as_people_write_them() -> None:
    assert page_numbers("3") == page_numbers(3) == [3]
    assert page_numbers("1, 4-6,5") == [1, 4, 5, 6]
