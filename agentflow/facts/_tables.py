"""Facts and closed sets that tables and complete enumerations state, found by rule."""

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Final, NamedTuple

from agentflow.facts._facts import ClosedSet, Fact, FactSpan
from agentflow.facts._locating import new_fact, new_set
from agentflow.facts._mentions import sentence_spans
from agentflow.facts._normal_forms import bare_name, name_key, relation_name
from agentflow.facts._table_parsing import ParsedTable, TableCell, parse_tables
from agentflow.facts._values import DateValue, EntityValue, Value, ValueKind, parse_value
from agentflow.text import quantity_of
from agentflow.trajectory import Action, Node

_MISSING: Final = frozenset(
    {"", "-", "–", "—", "n/a", "na", "none", "null", "nan", "?", "unknown", "<na>", "nat", "…", "..."}
)
"""Cells without a value, in lower case."""
_TOTAL: Final = re.compile(
    r"(?:grand |sub)?totals?|sum|average|mean|median|overall|all|whole|σ|∑", re.IGNORECASE
)
"""Keys of rows that sum up the others."""
_OTHERS: Final = re.compile(r"(?:all )?(?:the )?(?:others?|rest|remaining)(?: \w+)?", re.IGNORECASE)
_ATTRIBUTES: Final = frozenset({
    "name", "full name", "born", "died", "date of birth", "place of birth", "occupation", "profession", "nationality",
    "spouse", "spouse(s)", "children", "parents", "education", "location", "address", "coordinates", "country", "region",
    "state", "county", "capital", "population", "area", "elevation", "height", "length", "width", "depth", "weight",
    "built", "opened", "founded", "established", "architect", "designer", "owner", "operator", "type", "status", "website",
    "language", "languages", "currency", "time zone", "author", "publisher", "genre", "director", "release date",
    "founder", "headquarters", "industry", "employees", "number of employees", "constructed", "construction", "material",
})  # fmt: skip
"""Names of attributes, in lower case."""
_GENERIC: Final = frozenset(
    {"", "name", "title", "label", "entity", "item", "object", "id", "key", "subject"}
)
"""Names of key columns that do not name the class of the rows."""
_DATED: Final = re.compile(
    r"\b(?:years?|dates?|born|died|founded|established|built|constructed|launched|opened|closed|completed|since|birth"
    r"|death|released?|published|commissioned|sank|when|foundation|construction|launch)\b",
    re.IGNORECASE,
)
_UNIT: Final = re.compile(
    r"\s*(?:[(\[](?P<inside>[^()\[\]]{1,30})[)\]]|,\s*(?P<after>[^\s,]{1,12})|\s+in\s+(?P<word>\w+))$"
)
_LIST_OF: Final = re.compile(
    r"(?:all|(?:the )?(?:complete |full )?(?:list|table|register|overview) of(?: all)?)(?: the)? (?=\S)",
    re.IGNORECASE,
)
"""Words before the plural noun in a caption."""
_CALL: Final = re.compile(r"\w\(|\*|[<>=]")
_NUMBERED: Final = re.compile(r"[\d.,%$€£ -]+")
_QUERY_LIMIT: Final = re.compile(
    r"\b(?:LIMIT|TOP|FETCH|OFFSET|SAMPLE|head|tail|nlargest|nsmallest|iloc|islice|WHERE|HAVING|filter|query|grep|awk|sed)\b"
    r"|\[.*(?:==|[<>:]).*\]",
    re.IGNORECASE,
)
_SIMPLE_QUERY: Final = re.compile(
    r"\s*SELECT\s+(?!DISTINCT\b|TOP\b)[^()]{1,2000}?\sFROM\s+[\"`\[]?(?P<table>\w+)[\"`\]]?\s*(?:ORDER\s+BY\s[^()]{1,500}?)?;?\s*",
    re.IGNORECASE,
)
_LONG_SENTENCE: Final = 600
_LONGEST_NAME: Final = 100
_NUMBERS: Final = {word: number for number, word in enumerate(
    [
        "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
        "fourteen", "fifteen",
    ],
    2,
)}  # fmt: skip
_LISTED: Final = re.compile(
    rf"(?:(?:(?P<owner>[A-Z][\w'’-]*(?: (?:of|the|and|[A-Z][\w'’-]*)){{0,6}}) (?:has|have|had|comprises?|consists? of|contains?|counts)"
    rf"(?: only| exactly| just)?)|\b(?:[Tt]he|[Ii]ts|[Tt]here (?:are|were)(?: only| exactly)?|[Aa]ll|[Oo]nly))"
    rf" (?P<number>{'|'.join(_NUMBERS)}|\d{{1,2}}) (?P<noun>[a-z][\w'’-]*(?: [\w'’-]+){{0,9}}?)"
    rf"(?: (?:are|were)(?: called| named)?:?|:|,? namely|,? called|,? named| –| —) (?P<list>[A-Z][^.;:!?]*)"
)


class TableReading(NamedTuple):
    """Facts and closed sets of an observation that were found by rule."""

    facts: tuple[Fact, ...]
    """Facts: the subject is the key of a row, the relation the name of a column."""
    sets: tuple[ClosedSet, ...]
    """Keys of whole tables, and complete enumerations in sentences."""


class _Column(NamedTuple):
    """A column whose cells are values of a relation."""

    place: int
    relation: str
    unit: str
    kind: ValueKind


def read_tables(node: Node) -> TableReading:
    """Find the facts that the tables of an observation state, and the sets that it lists completely.

    The keys of a table's rows are a closed set if nothing indicates that rows are missing: no mark, no limit that was
    reached, no condition in the query.

    See docs/facts.md.
    """
    text = node.observation.text
    facts: list[Fact] = []
    sets: list[ClosedSet] = []
    tables = parse_tables(text)
    if not tables and (listed := _listed_by_query(node)):
        sets.append(listed)
    for table in map(_without_totals, tables):
        for key in _key_columns(table):
            places = (index for index in range(len(table.header)) if index != key)
            columns = [column for index in places if (column := _column(table, index))]
            if _is_unique(table, key):
                facts += _row_facts(table, key, columns, None, node.id)
                if closed := _closed_set(table, key, node):
                    sets.append(closed)
                break
            if period := _period(table, key, columns):
                facts += _row_facts(table, key, [one for one in columns if one != period], period, node.id)
                break
    sets += _enumerations(text, node.id)
    return TableReading(tuple(facts), tuple(sets))


def _without_totals(table: ParsedTable) -> ParsedTable:
    """Leave out rows of totals and of all others; the latter show that rows are missing."""
    rows = tuple(row for row in table.rows if not _TOTAL.fullmatch(row[0].text))
    known = tuple(row for row in rows if not _OTHERS.fullmatch(row[0].text))
    return table._replace(rows=known, whole=table.whole and len(known) == len(rows))


def _key_columns(table: ParsedTable) -> Iterator[int]:
    """Yield the columns that may name the rows: words with a capital letter, or any words under a heading for names.

    A table of attributes in two columns, such as the box beside an article, has none.
    """
    first = (table.header[0].text, *(row[0].text for row in table.rows))
    if sum(cell.casefold().strip(" :") in _ATTRIBUTES for cell in first) > 1:
        return
    for index, header in enumerate(table.header[:4]):
        cells = [row[index].text for row in table.rows]
        if not all(cells) or any(cell.casefold() in _MISSING or _NUMBERED.fullmatch(cell) for cell in cells):
            continue
        named = sum(any(map(str.isupper, cell)) or not cell.isascii() for cell in cells)
        dates = sum(parse_value(cell, ValueKind.DATE) is not None for cell in cells)
        if cells and dates == 0 and (2 * named > len(cells) or header.text.casefold() in ("name", "title")):
            yield index


def _is_unique(table: ParsedTable, key: int) -> bool:
    names = [name_key(row[key].text) for row in table.rows]
    return len(set(names)) == len(names)


def _period(table: ParsedTable, key: int, columns: Sequence[_Column]) -> _Column | None:
    """Return the column of dates with which the key is unique: a table of values by year."""
    for column in columns:
        if column.kind is ValueKind.DATE and column.relation in ("year", "date", "period", "month"):
            pairs = {(name_key(row[key].text), row[column.place].text) for row in table.rows}
            return column if len(pairs) == len(table.rows) else None
    return None


def _column(table: ParsedTable, index: int) -> _Column | None:
    """Return relation, unit and type of a column; none of one without a name or with mixed values."""
    header = table.header[index].text
    cells = [row[index].text for row in table.rows if row[index].text.casefold() not in _MISSING]
    if _CALL.search(header) or not cells:
        return None
    name, unit = _relation_and_unit(header)
    kind = _kind(name, unit, cells)
    relation = relation_name(name, kind)
    if sum(map(str.isalpha, relation)) < 2:
        return None
    if kind is ValueKind.NUMBER and not unit and relation.isalpha() and re.search(r"[^s]s$", relation):
        relation, unit = relation_name(f"number of {relation}"), relation
    return _Column(index, relation, unit, kind)


def _relation_and_unit(header: str) -> tuple[str, str]:
    """Split the name of a column: `Height (m)`, `height_m` and `Height, m` have the unit m."""
    plain = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", header).replace("_", " ").strip()
    if found := _UNIT.search(plain):
        unit = next(part for part in found.groups() if part)
        if found["inside"] or _is_unit(unit):
            return plain[: found.start()], unit
    *words, last = plain.split() or [""]
    return (" ".join(words), last) if words and last.islower() and _is_unit(last) else (plain, "")


def _is_unit(word: str) -> bool:
    return quantity_of(Decimal(1), word).known


def _kind(name: str, unit: str, cells: Sequence[str]) -> ValueKind:
    kinds = (ValueKind.DATE, ValueKind.NUMBER) if _DATED.search(name) and not unit else (ValueKind.NUMBER,)
    for kind in (*kinds, ValueKind.BOOL):
        if all(parse_value(cell, kind) is not None for cell in cells):
            return kind
    if all(re.search("[A-Za-z]", cell) and parse_value(cell, ValueKind.DATE) for cell in cells):
        return ValueKind.DATE
    short = all(len(cell.split()) <= 8 and (cell[:1].isupper() or not cell.isascii()) for cell in cells)
    return ValueKind.ENTITY if short and not any(cell.endswith(".") for cell in cells) else ValueKind.TEXT


def _row_facts(
    table: ParsedTable, key: int, columns: Sequence[_Column], period: _Column | None, node: str
) -> Iterator[Fact]:
    for row in table.rows:
        subject = bare_name(row[key].text)
        time = parse_value(row[period.place].text, ValueKind.DATE) if period else None
        for column in columns:
            cell = row[column.place]
            value = _cell_value(cell, column)
            if value is None or value == EntityValue(subject):
                continue
            limit = time if isinstance(time, DateValue) else None
            yield new_fact(subject, column.relation, value, (_row_span(row, cell, node),), limit)


def _cell_value(cell: TableCell, column: _Column) -> Value | None:
    if cell.text.casefold() in _MISSING:
        return None
    value = parse_value(cell.text, column.kind, column.unit)
    if isinstance(value, EntityValue):
        name = bare_name(value.name)
        return EntityValue(name) if name else None
    return value


def _row_span(row: Sequence[TableCell], cell: TableCell, node: str) -> FactSpan:
    return FactSpan(node, row[0].start, row[-1].end, value_start=cell.start, value_end=cell.end)


def _closed_set(table: ParsedTable, key: int, node: Node) -> ClosedSet | None:
    """Return the keys of a whole table as a closed set, if there are words for it."""
    if (
        not table.whole
        or len(table.rows) < 2
        or node.action is None
        or not _is_whole(node.action, len(table.rows))
    ):
        return None
    description = _description(table.header[key].text, table.title, node.action)
    members = tuple(bare_name(row[key].text) for row in table.rows)
    if not description or not all(members):
        return None
    span = FactSpan(node.id, table.start, table.end)
    return new_set(description, members, (span,))


def _listed_by_query(node: Node) -> ClosedSet | None:
    """Return the names that a query for the only column `name` of a table returns."""
    action = node.action
    if action is None or not action.tool.startswith("sql"):
        return None
    header, *names = node.observation.text.rstrip("\n").split("\n")
    plain = all(name[:1].isupper() and len(name) <= _LONGEST_NAME for name in names)
    if header.casefold() not in ("name", "title") or not plain or not 2 <= len(set(names)) == len(names):
        return None
    description = _description(header, "", action)
    if not description or not _is_whole(action, len(names)):
        return None
    return new_set(
        description, tuple(map(bare_name, names)), (FactSpan(node.id, 0, len(node.observation.text)),)
    )


def _is_whole(action: Action, rows: int) -> bool:
    """Return whether a call asks for all rows: without a limit that is reached, and without a condition."""
    for name, value in action.arguments.items():
        if name in ("limit", "rows", "count", "max_rows") and isinstance(value, int) and value <= rows:
            return False
        if name in ("offset", "start", "filter", "where") and value:
            return False
        if isinstance(value, str) and name in ("query", "sql") and action.tool.startswith("sql"):
            if _SIMPLE_QUERY.fullmatch(value) is None or _QUERY_LIMIT.search(value):
                return False
        elif isinstance(value, str) and name in ("code", "command", "script") and _QUERY_LIMIT.search(value):
            return False
    return True


def _description(header: str, title: str, action: Action) -> str:
    """Return words for the rows of a table: its caption, the table of the query, or the name of the key column."""
    query = action.arguments.get("query")
    if action.tool.startswith("sql") and isinstance(query, str) and (found := _SIMPLE_QUERY.fullmatch(query)):
        return _plural(found["table"].replace("_", " ").lower())
    name = _relation_and_unit(header)[0].casefold()
    generic = name in _GENERIC
    title = _LIST_OF.sub("", title, count=1)
    words = [word.casefold().strip(",") for word in title.split()]
    if not generic and words and words[0] in (_plural(name), name):
        return " ".join([_plural(name), *title.split()[1:]])
    if generic and words and words[0].endswith("s") and len(words[0]) > 3:
        return title[:1].lower() + title[1:] if title[1:2].islower() else title
    return f"{_plural(name)} in the table “{title}”" if title and not generic else ""


def _plural(noun: str) -> str:
    if noun.endswith("s"):
        return noun
    if re.search(r"[^aeiou]y$", noun):
        return f"{noun[:-1]}ies"
    return f"{noun}es" if re.search(r"(?:x|ch|sh|z)$", noun) else f"{noun}s"


def _enumerations(text: str, node: str) -> Iterator[ClosedSet]:
    """Yield the sets that a sentence lists with their number: `The three islands are A, B and C.`"""
    for start, end in sentence_spans(text):
        if end - start > _LONG_SENTENCE:
            continue
        found = _LISTED.search(text, start, end)
        if found is None:
            continue
        count = _NUMBERS.get(found["number"]) or int(found["number"])
        members = tuple(
            bare_name(part) for part in re.split(r",\s+(?:and\s+)?|\s+and\s+", found["list"].strip()) if part
        )
        if len(members) != count or len(set(members)) < count or count < 2:
            continue
        if all(member[:1].isupper() and len(member.split()) <= 6 for member in members):
            owner = found["owner"]
            description = f"{found['noun']} of {_owner(owner)}" if owner else found["noun"]
            yield new_set(
                description, members, (FactSpan(node, found.start(), start + len(text[start:end])),)
            )


def _owner(name: str) -> str:
    return f"the {name[4:]}" if name.startswith("The ") else name
