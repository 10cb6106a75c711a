"""Typed values: reading, showing, comparing."""

from decimal import Decimal

import msgspec
import pytest

from agentflow.facts import (
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


@pytest.mark.promise("facts:values:read")
@pytest.mark.parametrize(
    "text", ["the 1830s", "circa 1841", "early 1841", "1834-35", "31 February 1841", "05/06/1841", ""]
)
def test_a_vague_or_impossible_date_is_none(text: str) -> None:
    assert parse_value(text, ValueKind.DATE) is None


@pytest.mark.promise("facts:values:agree")
def test_values_agree_by_type() -> None:
    assert values_agree(NumberValue(Decimal("0.05")), NumberValue(Decimal(5), "%"))
    assert not values_agree(NumberValue(Decimal("0.05")), NumberValue(Decimal(5)))
    assert not values_agree(DateValue(1841), DateValue(1841, 5))
    assert values_agree(EntityValue("The Gull"), EntityValue("gull"))
    assert not values_agree(EntityValue("Ada Holm"), EntityValue("Holm"))
