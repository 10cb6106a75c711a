import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.facts import read_tables, show_value
from agentflow.trajectory import Action
from tests.agentflow.facts._observations import observed

ISLANDS = [
    ("Ossel", "population", "31,000"),
    ("Ossel", "area", "120 km²"),
    ("Ossel", "year of foundation", "1204"),
    ("Ossel", "main town", "Port Vannick"),
    ("Low Maddon", "population", "3,700"),
    ("Low Maddon", "area", "80 km²"),
    ("Low Maddon", "main town", "Maddon"),
]
HEADER = ["Island", "Population", "Area (km²)", "Founded", "Main town"]
ROWS = [["Ossel", "31,000", "120", "1204", "Port Vannick"], ["Low Maddon", "3,700", "80", "-", "Maddon"]]


def piped(cells: list[str]) -> str:
    return " | ".join(cells)


FORMS = {
    "markdown": "# Islands of the north\n\n| " + " |\n| ".join(
        [piped(HEADER), "---|:--|---|---|--:", *(piped(["**" + row[0] + "**", *row[1:]]) for row in ROWS)]
    ) + " |\n",
    "rows of our tools": "\n".join(["Islands of the north:", piped(HEADER), *map(piped, ROWS)]),
    "document tool": "\n".join(["isles.docx [2.1] Islands of the north, page 3", *map(piped, [HEADER, *ROWS])]),
    "csv": "Islands of the north\n\n" + "\n".join(
        ["Island,Population,Area (km²),Founded,Main town", 'Ossel,"31,000",120,1204,Port Vannick', '"Low Maddon","3,700",80,-,Maddon']
    ),
    "tsv": "Islands of the north\n" + "\n".join("\t".join(row) for row in [HEADER, *ROWS]),
    "columns": "Islands of the north\n\n" + "\n".join("  ".join(f"{cell:>12}" for cell in row) for row in [HEADER, *ROWS]),
    "data frame": "Islands of the north\n\n" + "\n".join(
        " " * 3 * (index < 0) + ("" if index < 0 else f"{index}  ") + "  ".join(f"{cell:>12}" for cell in row)
        for index, row in enumerate([HEADER, *ROWS], -1)
    ),
    "JSON": 'Result:\n{"islands of the north": ' + json.dumps(
        [dict(zip(HEADER, [None if cell == "-" else cell for cell in row], strict=True)) | {"x": {"a": []}} for row in ROWS], indent=1
    ) + "}",
}  # fmt: skip


@pytest.mark.promise("facts:tables:forms")
@pytest.mark.parametrize("form", FORMS)
def test_the_cells_of_a_table_are_facts(form: str) -> None:
    node = observed(FORMS[form])
    found = read_tables(node)
    assert [(one.subject, one.relation, show_value(one.value)) for one in found.facts] == ISLANDS
    text = node.observation.text
    for fact in found.facts:
        (span,) = fact.spans
        assert text[span.value_start : span.value_end] in (
            show_value(fact.value),
            show_value(fact.value).split()[0],
        )
        assert fact.subject in text[span.start : span.end]
    (closed,) = found.sets
    assert closed.members == ("Ossel", "Low Maddon")
    assert closed.description == "islands of the north"


CUT = {
    "… 4 more rows": "piece",
    "... 120 rows in total": "piece",
    "There are more rows: increase limit, or let the query aggregate.": "piece",
    "next_offset: 20": "piece",
    "(2 rows)": "whole",
    "": "whole",
}


@pytest.mark.promise("facts:tables:closed")
@pytest.mark.parametrize(("end", "kind"), CUT.items())
def test_only_a_whole_table_gives_a_closed_set(end: str, kind: str) -> None:
    found = read_tables(observed(f"{FORMS['rows of our tools']}\n{end}"))
    assert len(found.facts) == len(ISLANDS)
    assert bool(found.sets) is (kind == "whole")


@pytest.mark.promise("facts:tables:closed")
@pytest.mark.parametrize(
    ("query", "description"),
    [
        ("SELECT name, height FROM lighthouse", "lighthouses"),
        ('select name, height from "light_houses" order by height desc;', "light houses"),
        ("SELECT name, height FROM lighthouse LIMIT 2", ""),
        ("SELECT name, height FROM lighthouse WHERE height > 30", ""),
        ("SELECT name, max(height) AS height FROM lighthouse GROUP BY island", ""),
        ("SELECT a.name, height FROM lighthouse a JOIN island USING (id)", ""),
        ("SELECT DISTINCT name, height FROM lighthouse", ""),
        ("SELECT TOP 2 name, height FROM lighthouse", ""),
    ],
)
def test_the_result_of_a_query_is_closed_if_it_has_no_condition(query: str, description: str) -> None:
    text = "name | height\nBrenn Light | 41\nOssel Light | 30"
    found = read_tables(observed(text, action=Action("sql_execute", {"database": "isles", "query": query})))
    assert [one.relation for one in found.facts] == ["height", "height"]
    assert [one.description for one in found.sets] == ([description] if description else [])
    limited = {"database": "isles", "query": query, "limit": 2}
    assert not read_tables(observed(text, action=Action("sql_execute", limited))).sets


@pytest.mark.promise("facts:tables:closed")
@pytest.mark.parametrize(
    ("query", "text", "members"),
    [
        ("SELECT name FROM island", "name\nOssel\nLow Maddon", ("Ossel", "Low Maddon")),
        ("SELECT name FROM island ORDER BY name", "name\nLow Maddon\nOssel\nSkarra", ("Low Maddon", "Ossel", "Skarra")),
        ("SELECT name FROM island", "name\nOssel\nLow Maddon\n… there are more rows", ()),
        ("SELECT name FROM island WHERE area > 3", "name\nOssel\nLow Maddon", ()),
        ("SELECT name FROM island", "name\nOssel\nOssel", ()),
        ("SELECT area FROM island", "area\n31\n32", ()),
        ("SELECT name FROM island", "error: no such table", ()),
    ],
)  # fmt: skip
def test_the_names_that_a_query_returns_are_a_closed_set(
    query: str, text: str, members: tuple[str, ...]
) -> None:
    action = Action("sql_execute", {"database": "isles", "query": query})
    found = read_tables(observed(text, action=action))
    assert found.facts == ()
    assert [(one.description, one.members) for one in found.sets] == (
        [("islands", members)] if members else []
    )


def test_a_sample_or_a_filtered_frame_is_not_closed() -> None:
    text = FORMS["rows of our tools"]
    for action in (
        Action("data_run", {"code": "print(df.head(2))"}),
        Action("data_run", {"code": "df[df['x'] > 3]"}),
        Action("data_read", {"file": "a.csv", "rows": 2}),
        Action("data_read", {"file": "a.csv", "offset": 5}),
    ):
        found = read_tables(observed(text, action=action))
        assert found.facts and not found.sets, action
    assert read_tables(observed(text, action=Action("data_run", {"code": "print(df)"}))).sets
    assert not read_tables(observed(text.replace("Islands of the north", "The first 2 islands"))).sets


@pytest.mark.promise("facts:tables:time")
def test_a_table_of_values_by_year_gives_facts_with_a_time() -> None:
    text = "City | Year | Population\nOssel | 1900 | 300\nOssel | 1910 | 310\nBrenn | 1900 | 20"
    found = read_tables(observed(text))
    assert [
        (one.subject, one.relation, show_value(one.value), one.time and one.time.year) for one in found.facts
    ] == [
        ("Ossel", "population", "300", 1900),
        ("Ossel", "population", "310", 1910),
        ("Brenn", "population", "20", 1900),
    ]
    assert found.sets == ()
    assert len({one.id for one in found.facts}) == 3


NOTHING = {
    "prose with commas": "Hello, world.\nThis is, prose.\nAnd, so on.",
    "navigation": "Home | About | Contact\n\nText follows.",
    "numbers": "1 | 2\n3 | 4\n5 | 6",
    "no key": "Year | Count\n1900 | 3\n1901 | 4",
    "repeated key": "City | Population\nOssel | 3\nOssel | 4",
    "aggregate": "island | count(*)\nOssel | 3\nBrenn | 4",
    "ragged": "a | b\nOssel | 3 | 4\nBrenn",
    "broken JSON": '[{"name": "Ossel", "height": 3}, {"name": "Brenn", ',
    "JSON of other things": '{"a": 1, "b": [1, 2, 3]}',
    "deep JSON": '[{"a":' * 5_000,
    "box beside an article": "| Born | 12 May 1841 in Ossel |\n|---|---|\n| Occupation | Architect |\n| Spouse | Jon Berg |",
    "attributes": "Name | Ada Holm\nOccupation | Architect\nHome | Ossel",
    "code": "if (a || b) {\n  c | d;\n}",
}


@pytest.mark.parametrize("form", NOTHING)
def test_other_texts_give_nothing(form: str) -> None:
    found = read_tables(observed(NOTHING[form]))
    assert (found.facts, found.sets) == ((), ())


@pytest.mark.promise("facts:tables:enumerations")
@pytest.mark.parametrize(
    ("text", "description", "members"),
    [
        ("The three islands of the group are Ossel, Brenn and Low Maddon.", "islands of the group", 3),
        (
            "The Guild of Glaziers has two workshops: Port Vannick and Ossel.",
            "workshops of the Guild of Glaziers",
            2,
        ),
        ("There are 3 lighthouses: Brenn Light, Vannick Light, and Sorrow.", "lighthouses", 3),
        ("Its two founders were Ada Holm and Bram Oster.", "founders", 2),
        ("The five islands are Ossel, Brenn and Low Maddon.", "", 0),
        ("Some of the islands are Ossel, Brenn and Low Maddon.", "", 0),
        ("The two largest towns: Ossel, see below", "", 0),
        ("Three ships were built, among them Gull, Tern and Heron.", "", 0),
    ],
)
def test_a_sentence_that_counts_its_enumeration_gives_a_closed_set(
    text: str, description: str, members: int
) -> None:
    found = read_tables(observed(f"Before. {text} After."))
    assert [(one.description, len(one.members)) for one in found.sets] == (
        [(description, members)] if members else []
    )


CELLS = st.text(alphabet=st.sampled_from('aAbB1 |,\t"\n\\…{}[]:-é'), max_size=120)


@pytest.mark.promise("facts:tables:forms")
@given(CELLS, st.sampled_from(["", "Name | Height\nOssel | 3\n", "Name,Height\nOssel,3\nBrenn,4\n", "[{"]))
def test_any_text_can_be_read(text: str, before: str) -> None:
    node = observed(before + text)
    for fact in read_tables(node).facts:
        (span,) = fact.spans
        assert 0 <= span.start <= span.value_start < span.value_end <= span.end <= len(node.observation.text)


def test_totals_are_no_rows_and_others_show_that_rows_are_missing() -> None:
    rows = "Islands:\n\nIsland | Population\nOssel | 300\nBrenn | 20\n"
    for last, closed in (("Total | 320", True), ("Average | 160", True), ("Other islands | 17", False)):
        found = read_tables(observed(rows + last))
        assert [one.subject for one in found.facts] == ["Ossel", "Brenn"]
        assert [one.members for one in found.sets] == ([("Ossel", "Brenn")] if closed else [])


def test_links_and_footnotes_are_not_part_of_a_cell() -> None:
    text = "| Island | Population | Ferry |\n|---|---|---|\n| [Ossel](/ossel) | 31,000[2] | yes |\n| Brenn* | 20 † | no |"
    found = read_tables(observed(text))
    assert [(one.subject, one.relation, show_value(one.value)) for one in found.facts] == [
        ("Ossel", "population", "31,000"),
        ("Ossel", "ferry", "yes"),
        ("Brenn", "population", "20"),
        ("Brenn", "ferry", "no"),
    ]
    (span,) = found.facts[0].spans
    assert text[span.value_start : span.value_end] == "31,000"


def test_the_rows_of_a_table_are_named_by_the_first_column_that_tells_them_apart() -> None:
    found = read_tables(observed("Country | City | Population\nNorland | Ossel | 3\nNorland | Brenn | 4"))
    assert [(one.subject, one.relation, show_value(one.value)) for one in found.facts] == [
        ("Ossel", "country", "Norland"),
        ("Ossel", "population", "3"),
        ("Brenn", "country", "Norland"),
        ("Brenn", "population", "4"),
    ]
