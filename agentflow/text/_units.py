"""Units that numbers are written with."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Final, NamedTuple


class Unit(NamedTuple):
    """A unit of measurement."""

    kind: str
    factor: Fraction
    """Size in the base unit of its kind, exactly."""


SCALES: Final[Mapping[str, int]] = {
    "hundred": 10**2,
    "thousand": 10**3,
    "million": 10**6,
    "millions": 10**6,
    "mn": 10**6,
    "billion": 10**9,
    "billions": 10**9,
    "bn": 10**9,
    "trillion": 10**12,
    "trillions": 10**12,
    "dozen": 12,
}
"""Words that multiply the number before them."""

_TABLE: Final = """
percent 0.01 % \\% percent pct percentage
length 1 m metre metres meter meters
length 1000 km kilometre kilometres kilometer kilometers
length 0.01 cm centimetre centimetres centimeter centimeters
length 0.001 mm millimetre millimetres millimeter millimeters
length 1609.344 mi mile miles
length 0.3048 ft foot feet
length 0.0254 inch inches
length 1852 nmi
length 0.9144 yd yard yards
mass 1 kg kilogram kilograms kilogramme kilogrammes kilo kilos
mass 0.001 g gram grams gramme grammes
mass 0.000001 mg milligram milligrams
mass 1000 t ton tons tonne tonnes
mass 0.45359237 lb lbs pound pounds
mass 0.028349523125 oz ounce ounces
time 1 s sec secs second seconds
time 0.001 ms millisecond milliseconds
time 60 min mins minute minutes
time 3600 h hr hrs hour hours
time 86400 day days
time 604800 week weeks
year 1 year years yr yrs
year 1/12 month months
year 10 decade decades
year 100 century centuries
calendar 1 calendardays
volume 1 l litre litres liter liters
volume 0.001 ml millilitre millilitres milliliter milliliters
volume 3.785411784 gallon gallons
area 1 sqm
area 1000000 sqkm
area 2589988.110336 sqmi
area 0.09290304 sqft
volume 1000 cbm
volume 1000000000000 cbkm
area 10000 ha hectare hectares
area 4046.8564224 acre acres
data 1 byte bytes
data 1000 kb kilobyte kilobytes
data 1000000 mb megabyte megabytes
data 1000000000 gb gigabyte gigabytes
data 1000000000000 tb terabyte terabytes
power 1 w watt watts
power 1000 kw kilowatt kilowatts
power 1000000 mw megawatt megawatts
speed 1 m/s mps
speed 5/18 km/h kph kmh
speed 0.44704 mph
celsius 1 °c celsius
fahrenheit 1 °f fahrenheit
kelvin 1 kelvin
angle 1 ° degree degrees
usd 1 usd dollar dollars $
eur 1 eur euro euros €
gbp 1 gbp £
jpy 1 jpy yen ¥
"""
UNITS: Final[Mapping[str, Unit]] = {
    name: Unit(kind, Fraction(factor))
    for kind, factor, *names in map(str.split, _TABLE.strip().splitlines())
    for name in names
}
"""Each way to write a unit."""

_SINGULARS: Final[Mapping[str, str]] = {
    "feet": "foot", "inches": "inch", "centuries": "century", "people": "person", "men": "man", "women": "woman",
    "children": "child",
}  # fmt: skip
_PEOPLE: Final = frozenset({"person", "inhabitant", "resident", "soul"})


def singular(noun: str) -> str:
    """Return a noun in the singular, if its plural is regular or that of a common unit.

    >>> singular("inches"), singular("ships"), singular("glass")
    ('inch', 'ship', 'glass')
    """
    start, space, last = noun.rpartition(" ")
    if (lower := last.lower()) in _SINGULARS:
        last = _SINGULARS[lower]
    elif lower.endswith("ies") and len(last) > 4:
        last = f"{last[:-3]}y"
    elif lower.endswith("s") and not lower.endswith(("ss", "us", "is")) and len(last) > 2:
        last = last[:-1]
    return start + space + last


def kind_of_unit(unit: str) -> Unit | None:
    """Return a unit of the table. Case matters only where it distinguishes units, as in MB and Mb."""
    return UNITS.get(unit) or UNITS.get(unit.lower())


def counted(noun: str) -> str:
    """Return one form of a noun that numbers count: `inhabitants` and `people` are the same."""
    single = singular(noun.lower())
    return "person" if single in _PEOPLE else single
