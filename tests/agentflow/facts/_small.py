"""A small store for tests: lighthouses, a keeper, ships, a complete table."""

from decimal import Decimal

from agentflow.facts import (
    KIND,
    BoolValue,
    ClosedSet,
    DateValue,
    EntityValue,
    Fact,
    FactSpan,
    FactStore,
    ListValue,
    NumberValue,
    Operator,
    ProgramInput,
    ProgramStep,
    TextValue,
    Value,
    show_value,
)


def metres(amount: int) -> NumberValue:
    return NumberValue(Decimal(amount), "metres")


def fact(subject: str, relation: str, value: Value, *nodes: str, year: int = 0, start: int = 0) -> Fact:
    time = DateValue(year) if year else None
    return Fact(
        id=f"{subject}/{relation}/{show_value(value)}{f'/{year}' if year else ''}",
        subject=subject,
        relation=relation,
        value=value,
        time=time,
        spans=tuple(FactSpan(node, start, start + 1) for node in nodes or ("n1",)),
    )


BRENN, SKERRY, TERN, FAR = map(EntityValue, ("Brenn Light", "Skerry Light", "Tern Light", "Far Light"))

FACTS = (
    fact("Brenn Light", KIND, TextValue("lighthouse")),
    fact("Brenn Light", "keeper", EntityValue("Ada Holm")),
    fact("Brenn Light", "height", metres(34)),
    fact("Brenn Light", "opening", DateValue(1834)),
    fact("Brenn Light", "island", EntityValue("Brenn")),
    fact("Skerry Light", KIND, TextValue("lighthouse"), "n2"),
    fact("Skerry Light", "keeper", EntityValue("Jon Berg"), "n2"),
    fact("Skerry Light", "height", metres(20), "n2"),
    fact("Skerry Light", "opening", DateValue(1834, 5, 12), "n2"),
    fact("Skerry Light", "island", EntityValue("Brenn"), "n2"),
    fact("Tern Light", "height", NumberValue(Decimal(34), "m"), "n3"),
    fact("Tern Light", "opening", DateValue(1850), "n3"),
    fact("Far Light", "height", NumberValue(Decimal(3), "storeys"), "n3"),
    fact("Far Light", "opening", DateValue(1861), "n3"),
    fact("Ada Holm", "birthplace", EntityValue("Tern Bay"), "n4", "n5"),
    fact("Ada Holm", "year of birth", DateValue(1801), "n4"),
    fact("Jon Berg", "year of birth", DateValue(1790), "n5"),
    fact("Brenn", "population", NumberValue(Decimal(300), "inhabitants"), year=1900),
    fact("Brenn", "population", NumberValue(Decimal(450), "inhabitants"), year=1950),
    fact("Gull", "owners", ListValue((EntityValue("Ada Holm"), EntityValue("Jon Berg"))), "n6"),
    fact("Gull", "crossing", NumberValue(Decimal(5), "km"), "n6"),
    fact("Tern", "crossing", NumberValue(Decimal(4000), "metres"), "n6"),
    fact("Gull", "afloat", BoolValue(True), "n6"),
)
SETS = (
    ClosedSet(
        id="pair",
        description="lights of Brenn",
        members=("Brenn Light", "Skerry Light"),
        spans=(FactSpan("n2", 0, 1),),
    ),
    ClosedSet(
        id="all",
        description="lights",
        members=("Brenn Light", "Skerry Light", "Tern Light"),
        spans=(FactSpan("n3", 0, 1),),
    ),
    ClosedSet(id="none", description="lights of Far", members=(), spans=(FactSpan("n3", 0, 1),)),
)
STORE = FactStore(FACTS, SETS, {"the Brenn lighthouse": "Brenn Light"})


def step(
    operator: Operator, *inputs: ProgramInput, relation: str = "", name: str = "", time: int = 0
) -> ProgramStep:
    return ProgramStep(operator, inputs, relation, name=name, time=time)
