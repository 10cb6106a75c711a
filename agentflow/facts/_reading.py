"""Typed reading of a model's answer in prose, and its comparison with the expected value."""

from agentflow.facts._values import NumberValue, Value, kind_of, parse_value, values_agree


def read_answer(said: str, like: Value, *, question: str = "", surname: bool = False) -> Value | None:
    """Return the value that an answer states; `None` if it states none of that type, hedges, or gives alternatives.

    >>> from decimal import Decimal
    >>> read_answer("34 m", NumberValue(Decimal(30), "metres"))
    NumberValue(amount=Decimal('34'), unit='metres')

    :param like: the expected value: it gives the type, the unit, and the name to look for.
    :param question: the question. Its names and numbers are no answers.
    :param surname: the last word of a name is enough. Only right if no other candidate has it.
    """
    unit = like.unit if isinstance(like, NumberValue) else ""
    return parse_value(said, kind_of(like), unit)


def answer_agrees(expected: Value, said: str, *, question: str = "", surname: bool = False) -> bool:
    """Return whether an answer in prose states the expected value and no other.

    >>> from decimal import Decimal
    >>> answer_agrees(NumberValue(Decimal(34), "metres"), "34 m")
    True

    :param question: the question. Its names and numbers are no answers.
    :param surname: the last word of a name is enough. Only right if no other candidate has it.
    """
    read = read_answer(said, expected, question=question, surname=surname)
    return read is not None and values_agree(expected, read)
