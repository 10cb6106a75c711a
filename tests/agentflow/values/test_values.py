"""Typed values: reading, showing, comparing."""

from decimal import Decimal

import msgspec
import pytest

from agentflow.values import (
    BoolValue,
    DateValue,
    EntityValue,
    ListValue,
    NumberValue,
    TextValue,
    Value,
    ValueKind,
    kind_of,
    parse_value,
    show_value,
    values_agree,
)

SHOWN: list[tuple[Value, str]] = [
    (EntityValue("Brenn Light"), "Brenn Light"),
    (NumberValue(Decimal(2300), "inhabitants"), "2,300 inhabitants"),
    (NumberValue(Decimal("29.17e12"), "$"), "$29.17 trillion"),
    (NumberValue(Decimal("5.0"), "%"), "5.0%"),
    (NumberValue(Decimal(-1), "metres"), "-1 metre"),
    (DateValue(1841, 5, 12), "12 May 1841"),
    (DateValue(-44, 3), "March 44 BC"),
    (DateValue(34), "AD 34"),
    (TextValue("all lamps, and no oil"), "all lamps, and no oil"),
    (BoolValue(False), "no"),
    (ListValue((EntityValue("Norway"), EntityValue("Peru"), EntityValue("Chad"))), "Norway, Peru and Chad"),
    (ListValue((EntityValue("Peru"), EntityValue("Trinidad and Tobago"))), "Peru; Trinidad and Tobago"),
    (ListValue((EntityValue("Trinidad and Tobago"),)), '"Trinidad and Tobago"'),
    (ListValue((EntityValue("Norway"), EntityValue("Peru")), ordered=True), "Norway, then Peru"),
]


@pytest.mark.promise("facts:values:shown")
@pytest.mark.parametrize(("value", "shown"), SHOWN)
def test_a_value_is_shown_as_short_text_and_read_again(value: Value, shown: str) -> None:
    assert show_value(value) == shown
    unit = value.unit if isinstance(value, NumberValue) else ""
    assert parse_value(shown, kind_of(value), unit) == value


@pytest.mark.parametrize(("value", "_shown"), SHOWN)
def test_a_value_survives_json(value: Value, _shown: str) -> None:
    assert msgspec.json.decode(msgspec.json.encode(value), type=Value) == value


SAME: list[tuple[ValueKind, str, str]] = [
    (ValueKind.NUMBER, "5.0 %", "5 percent"), (ValueKind.NUMBER, "0.05", "5 %"), (ValueKind.NUMBER, "1 mile", "1609.344 metres"),
    (ValueKind.NUMBER, "1/2", "0.5"), (ValueKind.NUMBER, "½", "0.5"), (ValueKind.NUMBER, "1,234.5", "1234.50"),
    (ValueKind.NUMBER, "90 minutes", "1.5 hours"), (ValueKind.NUMBER, "1 year", "12 months"), (ValueKind.NUMBER, "1 century", "100 years"),
    (ValueKind.NUMBER, "2 decades", "20 years"), (ValueKind.NUMBER, "5 km²", "5,000,000 square metres"), (ValueKind.NUMBER, "3 people", "3 inhabitants"),
    (ValueKind.NUMBER, "12 dozen", "144"), (ValueKind.NUMBER, "1e3", "1000"), (ValueKind.NUMBER, "£5", "5 pounds"),
    (ValueKind.NUMBER, "1 acre", "4046.8564224 m²"), (ValueKind.NUMBER, "36 km/h", "10 m/s"), (ValueKind.NUMBER, "5 GB", "5,000 MB"),
    (ValueKind.DATE, "12 May 1841", "1841-05-12"), (ValueKind.DATE, "1841", "AD 1841"), (ValueKind.DATE, "44 BC", "44 BCE"),
    (ValueKind.DATE, "12.05.1841", "May 12, 1841"), (ValueKind.DATE, "the 12th of May, 1841", "12 May 1841"), (ValueKind.DATE, "Sept. 3, 1841", "3 September 1841"),
    (ValueKind.DATE, "13/05/1841", "13 May 1841"), (ValueKind.ENTITY, "The Gull", "gull"), (ValueKind.ENTITY, "Zoë", "Zoe"),
    (ValueKind.ENTITY, "J. R. R. Tolkien", "J.R.R. Tolkien"), (ValueKind.ENTITY, "Mr. Jon Berg", "Jon Berg"), (ValueKind.ENTITY, "St John's", "Saint John's"),
    (ValueKind.ENTITY, "R&D", "R and D"), (ValueKind.ENTITY, "“Gull”", "Gull"), (ValueKind.ENTITY, "Jean-Luc", "Jean Luc"),
    (ValueKind.ENTITY, "A Holm", "Holm"), (ValueKind.BOOL, "Yes", "true"), (ValueKind.LIST, "A1, B1 and C1", "C1, A1, B1"),
    (ValueKind.LIST, "A1, A1, B1", "A1, B1"), (ValueKind.LIST, "1, 2 and 3", "3, 2, 1"), (ValueKind.LIST, "Norway; Peru", "Peru and Norway"),
    (ValueKind.TEXT, "All lamps.", "all lamps"),
]  # fmt: skip
OTHER: list[tuple[ValueKind, str, str]] = [
    (ValueKind.NUMBER, "0.05", "5"), (ValueKind.NUMBER, "5", "5 %"), (ValueKind.NUMBER, "1 mile", "1609 metres"),
    (ValueKind.NUMBER, "1/3", "0.333"), (ValueKind.NUMBER, "$5", "€5"), (ValueKind.NUMBER, "5 km²", "5 km"),
    (ValueKind.NUMBER, "20 °C", "20 °F"), (ValueKind.NUMBER, "3 ships", "3 boats"), (ValueKind.NUMBER, "3 ships", "1 ship"),
    (ValueKind.NUMBER, "-5", "5"), (ValueKind.NUMBER, "5 kg", "5 pounds"), (ValueKind.DATE, "12 May 1841", "May 1841"),
    (ValueKind.DATE, "44 BC", "AD 44"), (ValueKind.ENTITY, "Ada Holm", "A. Holm"), (ValueKind.ENTITY, "Dr Holm", "Holm"),
    (ValueKind.ENTITY, "King George Island", "George Island"), (ValueKind.ENTITY, "Pier 5", "Pier 6"), (ValueKind.ENTITY, "が", "か"),
    (ValueKind.BOOL, "yes", "no"), (ValueKind.LIST, "A1, B1", "A1"), (ValueKind.LIST, "A1, then B1", "B1, then A1"),
    (ValueKind.TEXT, "not all lamps", "all lamps"),
]  # fmt: skip
NO_VALUES: list[tuple[ValueKind, str]] = [
    (ValueKind.NUMBER, ""), (ValueKind.NUMBER, "abc"), (ValueKind.NUMBER, "5-10"), (ValueKind.NUMBER, "5 to 10"), (ValueKind.NUMBER, "3rd"),
    (ValueKind.NUMBER, "5 or 6"), (ValueKind.NUMBER, "over 5"), (ValueKind.NUMBER, "nan"), (ValueKind.NUMBER, "inf"), (ValueKind.NUMBER, "1/0"),
    (ValueKind.NUMBER, "v2.3"), (ValueKind.NUMBER, "1.2.3"), (ValueKind.NUMBER, "12:30"), (ValueKind.NUMBER, "5 %%"), (ValueKind.NUMBER, "five-ish"),
    (ValueKind.NUMBER, "many"), (ValueKind.NUMBER, "1e999"), (ValueKind.DATE, "1830s"), (ValueKind.DATE, "the 19th century"), (ValueKind.DATE, "c. 1841"),
    (ValueKind.DATE, "about 1841"), (ValueKind.DATE, "1841?"), (ValueKind.DATE, "1834-36"), (ValueKind.DATE, "05/06/1841"), (ValueKind.DATE, "13/13/1841"),
    (ValueKind.DATE, "30 February 1841"), (ValueKind.DATE, "32 May 1841"), (ValueKind.DATE, "May"), (ValueKind.DATE, "12 May"), (ValueKind.DATE, "yesterday"),
    (ValueKind.DATE, "12"), (ValueKind.DATE, "0"), (ValueKind.DATE, "early May 1841"), (ValueKind.DATE, "before 1841"), (ValueKind.DATE, "1841 or 1842"),
    (ValueKind.DATE, "Easter 1841"), (ValueKind.DATE, "1841, 1842"), (ValueKind.DATE, "summer of 1841"), (ValueKind.DATE, "Q2 1841"), (ValueKind.DATE, "18:41"),
    (ValueKind.BOOL, "maybe"), (ValueKind.BOOL, "yes and no"), (ValueKind.BOOL, ""), (ValueKind.BOOL, "y"), (ValueKind.ENTITY, ""),
    (ValueKind.ENTITY, " "), (ValueKind.ENTITY, "..."), (ValueKind.ENTITY, "?!"), (ValueKind.LIST, ""), (ValueKind.TEXT, " "),
]  # fmt: skip


def parsed(text: str, kind: ValueKind) -> Value:
    """Return the value of a text that has one."""
    value = parse_value(text, kind)
    assert value is not None, text
    return value


@pytest.mark.promise("facts:values:agree")
@pytest.mark.parametrize(("kind", "one", "other"), SAME)
def test_the_same_value_agrees_however_it_is_written(kind: ValueKind, one: str, other: str) -> None:
    assert values_agree(parsed(one, kind), parsed(other, kind))


@pytest.mark.promise("facts:values:agree")
@pytest.mark.parametrize(("kind", "one", "other"), OTHER)
def test_other_values_do_not_agree(kind: ValueKind, one: str, other: str) -> None:
    assert not values_agree(parsed(one, kind), parsed(other, kind))


@pytest.mark.promise("facts:values:read")
@pytest.mark.parametrize(("kind", "text"), NO_VALUES)
def test_a_text_that_is_no_single_exact_value_is_none(kind: ValueKind, text: str) -> None:
    assert parse_value(text, kind) is None


@pytest.mark.promise("facts:values:agree")
def test_values_of_different_types_do_not_agree() -> None:
    assert not values_agree(EntityValue("1841"), DateValue(1841))
    assert not values_agree(NumberValue(Decimal(1841)), DateValue(1841))
    assert not values_agree(BoolValue(True), TextValue("yes"))


@pytest.mark.promise("facts:values:read")
def test_an_impossible_value_is_refused() -> None:
    for year, month, day in ((0, 0, 0), (1841, 13, 0), (1841, 2, 30), (1841, 0, 12), (1841, -1, 0)):
        with pytest.raises(ValueError, match="no such date"):
            DateValue(year, month, day)
    with pytest.raises(ValueError, match="must be finite"):
        NumberValue(Decimal("NaN"))
    with pytest.raises(msgspec.ValidationError, match="no such date"):
        msgspec.json.decode(b'{"kind": "date", "year": 1841, "month": 13}', type=Value)
