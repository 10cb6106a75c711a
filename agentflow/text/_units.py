"""Units that numbers are written with."""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Unit(NamedTuple):
    """A unit of measurement."""

    kind: str
    factor: float
    """Size in the base unit of its kind."""


SCALES: Final[Mapping[str, float]] = {
    "hundred": 1e2,
    "thousand": 1e3,
    "million": 1e6,
    "millions": 1e6,
    "mn": 1e6,
    "billion": 1e9,
    "billions": 1e9,
    "bn": 1e9,
    "trillion": 1e12,
    "trillions": 1e12,
    "dozen": 12.0,
}
"""Words that multiply the number before them."""

CURRENCIES: Final[Mapping[str, str]] = {"$": "usd", "€": "eur", "£": "gbp", "¥": "jpy"}
"""The signs of currencies."""

_TABLE: Final = """
percent 0.01 % \\% percent pct percentage
length 1 m metre metres meter meters
length 1000 km kilometre kilometres kilometer kilometers
length 0.01 cm centimetre centimetres centimeter centimeters
length 0.001 mm millimetre millimetres millimeter millimeters
length 1609.344 mi mile miles
length 0.3048 ft foot feet
length 0.0254 inch inches
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
volume 1 l litre litres liter liters
volume 0.001 ml millilitre millilitres milliliter milliliters
volume 3.785411784 gallon gallons
area 1 sqm
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
speed 0.2777777777777778 km/h kph kmh
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
    name: Unit(kind, float(factor))
    for kind, factor, *names in map(str.split, _TABLE.strip().splitlines())
    for name in names
}
"""Each way to write a unit."""
