"""Answers in prose, compared with the expected value."""

from decimal import Decimal

import pytest

from agentflow.values import (
    BoolValue,
    DateValue,
    EntityValue,
    ListValue,
    NumberValue,
    ScalarValue,
    TextValue,
    Value,
    answer_agrees,
    read_answer,
    texts_agree,
)

YES, NO = BoolValue(True), BoolValue(False)
HIGH = NumberValue(Decimal(34), "metres")
RATE = NumberValue(Decimal("5.0"), "%")
COUNT = NumberValue(Decimal(3))
PEOPLE = NumberValue(Decimal(2300), "inhabitants")
SHIPS = NumberValue(Decimal(12), "ships")
GDP = NumberValue(Decimal("29.17e12"), "$")
AGE = NumberValue(Decimal(7), "years")
DAY, MONTH, YEAR = DateValue(1841, 5, 12), DateValue(1841, 5), DateValue(1841)
ADA, JORUN, GUILD, LIGHT = map(EntityValue, ("Ada Holm", "Jorun Pike", "Guild of Glaziers", "Brenn Light"))
NORWAY, PERU, CHAD, INDIA, CHINA, US = map(
    EntityValue, ("Norway", "Peru", "Chad", "India", "China", "United States")
)
COPPER = TextValue("copper")


def several(*items: ScalarValue, ordered: bool = False) -> ListValue:
    """Return a list."""
    return ListValue(items, ordered)


def dollars(trillions: str) -> NumberValue:
    """Return an amount in trillions of dollars."""
    return NumberValue(Decimal(trillions) * 10**12, "$")


TOP_THREE = (
    "The top three countries by GDP in 2024 are: 1. United States (~$29.17 trillion), 2. China (~$18.53 trillion), "
    "3. Germany (~$4.59 trillion)."
)
FASTEST = "Based on 2024 data, India had the fastest GDP growth rate at 6.8%..."

AGREE: list[tuple[Value, str]] = [
    (YES, "Yes."), (YES, "yes"), (YES, "Yes, both were built in 1834."), (YES, "It is true."), (YES, "True"),
    (YES, "Brenn Light is older, so yes."), (YES, "Indeed it was."), (YES, "**Yes**, it was."), (YES, "The answer is: yes."),
    (YES, "It did."), (YES, "Correct."), (YES, "Yes - the log says so."), (YES, "Not false, wait for it: the answer is yes."),
    (NO, "no"), (NO, "No, it was not."), (NO, "It was not."), (NO, "It wasn't."), (NO, "Not true."), (NO, "Neither was."),
    (NO, "No it was built later."), (NO, "False."), (NO, "Incorrect."), (NO, "No. Brenn Light was built in 1841."),
    (NO, "Answer: No"), (NO, "They were not."), (NO, "Never."),

    (HIGH, "34 metres"), (HIGH, "It was 34 metres."), (HIGH, "34"), (HIGH, "34m"), (HIGH, "34 m (112 ft)"), (HIGH, "3,400 cm"),
    (HIGH, "thirty-four metres"), (HIGH, "about 34 metres"), (HIGH, "It was 34 metres, not 43."), (HIGH, "34.0 meters"),
    (HIGH, "In 1834 it was 34 metres tall."), (HIGH, "36 - 2 = 34 metres"), (HIGH, "34 metres. The mast is 12 metres."),
    (HIGH, "The 34-metre tower"), (HIGH, "The answer is not 43 but 34 metres."), (HIGH, "It stands 34 high."),
    (HIGH, "0.034 km"), (HIGH, "Therefore, it is 34 metres."), (HIGH, "34 metres; the second tower has 12 lamps."),
    (RATE, "5 percent"), (RATE, "5.0 %"), (RATE, "5 per cent"), (RATE, "5"), (RATE, "0.05"), (RATE, "China at 5.0 %"),
    (RATE, "It grew by 5% in 2024."), (NumberValue(Decimal("0.05")), "5 %"),
    (COUNT, "3 of the 7 lighthouses"), (COUNT, "Three: Ada (1834), Jorun (1841) and Ola (1850)."), (COUNT, "3 (three)"), (AGE, "From 1834 to 1841, i.e. 7 years"),
    (NumberValue(Decimal(1200), "$"), "1,200 USD"), (NumberValue(Decimal(2), "%"), "2 percentage points"), (NumberValue(Decimal(5), "£"), "5 pounds"),
    (COUNT, "There are three lighthouses."), (COUNT, "3"), (COUNT, "In 2001 there were 3."), (COUNT, "three"),
    (PEOPLE, "2,300 people lived there."), (PEOPLE, "2300"), (PEOPLE, "2.3 thousand"), (PEOPLE, "2 300 inhabitants"),
    (SHIPS, "12 large ships"), (SHIPS, "In 1834 12 sank."), (SHIPS, "a dozen ships"), (SHIPS, "twelve"),
    (GDP, "~$29.17 trillion"), (GDP, "29.17 trillion dollars"), (GDP, "US$29,170 billion"), (GDP, "29.17 trillion US dollars"),
    (NumberValue(Decimal("29.17"), "trillion US dollars"), "~$29.17 trillion"), (NumberValue(Decimal("5.2"), "million inhabitants"), "5,200,000 people"),
    (AGE, "1834 was 7 years after 1827."), (AGE, "Seven years"), (AGE, "84 months"), (NumberValue(Decimal(1)), "one"),
    (NumberValue(Decimal(-5), "°C"), "−5 °C"), (NumberValue(Decimal("1.5"), "km"), "one and a half km"),
    (NumberValue(Decimal(90), "minutes"), "1.5 hours"), (NumberValue(Decimal(5), "km²"), "5 square kilometres"),
    (NumberValue(Decimal(1234567)), "1'234'567"), (NumberValue(Decimal("3.5"), "km"), "3,5 km"),

    (DAY, "12 May 1841"), (DAY, "May 12, 1841"), (DAY, "1841-05-12"), (DAY, "12 May 1841 in Port Vannick"), (DAY, "12.5.1841"),
    (DAY, "It was built on May 12th, 1841."), (DAY, "On the 12th of May 1841."), (DAY, "In 1841, on 12 May 1841."),
    (DAY, "Wednesday, 12 May 1841"), (DAY, "12/05/1841 is ambiguous, but the answer is 12 May 1841."), (DAY, "12 MAY 1841"),
    (DAY, "Not 13 May 1841 but 12 May 1841."), (MONTH, "May 1841"), (MONTH, "in May of 1841"), (MONTH, "1841-05"),
    (YEAR, "1841"), (YEAR, "In 1841."), (YEAR, "It was built in 1841, not 1842."), (YEAR, "the year 1841"), (YEAR, "AD 1841"),
    (YEAR, "1841. The tower was raised in 1850."), (YEAR, "Since 1841."), (YEAR, "In 1841 ships of iron came."), (DateValue(-44), "44 BC"), (DateValue(-44, 3, 15), "15 March 44 BCE"),

    (ADA, "Ada Holm"), (ADA, "ada holm"), (ADA, "It was Ada Holm."), (ADA, "Dr. Ada Holm"), (ADA, "**Ada Holm**"), (ADA, "Ada  Holm!"),
    (ADA, "Ada Holm was the first keeper of Brenn Light."), (ADA, "The first keeper of Brenn Light was Ada Holm."),
    (ADA, "It was Ada Holm, not Jorun Pike."), (ADA, "Not Jorun Pike but Ada Holm."), (ADA, "No. It was Ada Holm."),
    (ADA, "Ada Holm. She was the first keeper, before Jorun Pike."), (ADA, "The lamp was lit by Ada Holm."), (ADA, "Ada Holm (1801-1870)"),
    (ADA, "Ada Holm\nReason: She was appointed before Jorun Pike."), (ADA, "Answer: Ada Holm\nReason: the log names her."), (ADA, "Keeper Ada Holm"),
    (LIGHT, "Brenn Light (34 m) is taller than Gull Tower (20 m)."), (LIGHT, "Among them, Brenn Light is the tallest."), (LIGHT, "The tallest is Brenn Light at 34 metres."),
    (ADA, '{"answer": "Ada Holm"}'), (ADA, r"\boxed{Ada Holm}"), (ADA, "According to the Harbour Log, Ada Holm was the first keeper."),
    (ADA, "Ada Holm (not Jorun Pike)"), (ADA, "ADA HOLM"), (ADA, "Ada Holm [1]."), (ADA, "The evidence says the first keeper was Ada Holm."),
    (ADA, "The answer is Ada Holm."), (ADA, "Ada Holm, the first keeper"), (ADA, "Ada Holm lit the lamp."), (ADA, "the keeper Ada Holm"),
    (GUILD, "The Guild of Glaziers."), (GUILD, "guild of glaziers"), (GUILD, "It was built by the Guild of Glaziers in 1841."),
    (INDIA, FASTEST), (CHINA, "China at 5.0 %"), (INDIA, "India had the fastest growth, ahead of China."), (US, "the United States"),
    (EntityValue("No Man's Land"), "It is No Man's Land."), (EntityValue("Zoë Ørn"), "Zoe Orn"), (EntityValue("St. Mary"), "Saint Mary"),
    (EntityValue("J. R. R. Tolkien"), "JRR Tolkien"), (EntityValue("U.S. Navy"), "the US Navy"), (EntityValue("Trial or Error"), "Trial or Error."),
    (EntityValue("Æther & Sons"), "AEther and Sons"), (EntityValue("东京"), "东京"), (EntityValue("C++"), "C++."), (EntityValue("Apollo 11"), "Apollo 11"),
    (COPPER, "Copper."), (COPPER, "It was made of copper."), (COPPER, "They mined copper."), (TextValue("all lamps, no oil"), "All lamps, no oil."),

    (several(US, CHINA, EntityValue("Germany")), TOP_THREE),
    (several(US, dollars("29.17"), CHINA, dollars("18.53"), EntityValue("Germany"), dollars("4.59")), TOP_THREE),
    (several(INDIA, NumberValue(Decimal("6.8"), "%")), FASTEST), (several(CHINA, RATE), "China at 5.0 %"), (several(CHINA, RATE), "China (5 percent)"),
    (several(NORWAY, PERU), "Peru and Norway"), (several(NORWAY, PERU), "norway and peru"), (several(NORWAY, PERU), "1. Norway\n2. Peru"),
    (several(NORWAY, PERU), "Norway and Peru, but not Chad."), (several(NORWAY, PERU), "They are Norway, and Peru."), (several(NORWAY), "Norway."),
    (several(EntityValue("Trinidad and Tobago"), PERU), "Peru and Trinidad and Tobago"), (several(NORWAY, PERU, ordered=True), "Norway, then Peru"),
    (several(ADA, JORUN), "The keepers of Brenn Light were Ada Holm and Jorun Pike."), (several(ADA, JORUN), "- Ada Holm\n- Jorun Pike"),
    (several(NORWAY, PERU), "Two countries remain: Norway and Peru."), (several(NORWAY, PERU), "Norway (1834) and Peru (1841) were both there."), (several(NORWAY, PERU), "Both Norway and Peru"),
    (several(COPPER, TextValue("tin")), "copper and tin"), (several(COUNT, NumberValue(Decimal(5))), "5 and 3"),
    (several(YEAR, DateValue(1834)), "In 1834 and 1841."), (several(NORWAY, YEAR, PERU, DateValue(1834)), "Norway in 1841 and Peru in 1834."),
]  # fmt: skip

DISAGREE: list[tuple[Value, str]] = [
    (YES, "No"), (YES, "Yes and no."), (YES, "Probably yes."), (YES, "Yes, it was not."), (YES, "I think so, yes."), (YES, "maybe"),
    (YES, ""), (YES, "It is not true."), (YES, "Not true"), (YES, "It is unclear."), (NO, "Yes"), (NO, "There is no evidence."),
    (NO, "No ships sank."), (NO, "No information is given."), (NO, "Not false."), (NO, "No, it was."), (NO, "Ada Holm"), (YES, "Yesterday."),
    (NO, "Norway"), (YES, "The documents do not say."), (NO, "It cannot be determined."), (YES, "Yes? No."), (YES, "Yes is wrong."), (YES, "True or false?"),

    (HIGH, "34 feet"), (HIGH, "34 kilometres"), (HIGH, "34 ships"), (HIGH, "between 34 and 36 metres"), (HIGH, "34 to 36 metres"), (HIGH, "34-36 metres"),
    (NumberValue(Decimal(36), "metres"), "34 to 36 metres"), (HIGH, "It was not 34 metres."), (HIGH, "over 34 metres"), (HIGH, "34 or 36 metres"),
    (HIGH, "34 metres? No, 36."), (HIGH, "34+ metres"), (HIGH, "at least 34 metres"), (HIGH, "340 metres"), (HIGH, "-34 metres"), (HIGH, "34.5 metres"),
    (HIGH, "The tower was 34 metres high and the mast 12 metres."), (HIGH, "less than 34 m"), (HIGH, "34 metres. No, wait: 36 metres."),
    (HIGH, "It is wrong that it was 34 metres."), (HIGH, "the 34th"), (HIGH, ""), (HIGH, "34 metres, I think."), (HIGH, "1.34 metres"),
    (HIGH, "34 square metres"), (HIGH, "34 m²"), (HIGH, "34 million"), (HIGH, "34 %"), (HIGH, "v34"), (HIGH, "34 ± 2 metres"), (HIGH, "nearly 34 metres"),
    (HIGH, "33.999 metres"), (HIGH, "34 metres per second"), (HIGH, "neither 34 nor 36 metres"), (HIGH, "34 or so metres"), (HIGH, "34 metres/36 metres"), (HIGH, "34 … 36 metres"), (HIGH, "34...36 metres"),
    (RATE, "5.1 %"), (RATE, "0.5"), (RATE, "500"), (NumberValue(Decimal(5)), "5 %"), (NumberValue(Decimal(5)), "0.05"), (RATE, "between 5 % and 6 %"),
    (COUNT, "the 3rd"), (COUNT, "3 or 4"), (COUNT, "more than three"), (COUNT, "30"), (COUNT, "not three"), (COUNT, "3 of 7"), (NumberValue(Decimal(7)), "3 of the 7 lighthouses"),
    (PEOPLE, "2,300 houses"), (PEOPLE, "23,000"), (PEOPLE, "2.3 million inhabitants"), (GDP, "€29.17 trillion"), (NumberValue(Decimal("29.17"), "trillion US dollars"), "$29.17 billion"), (GDP, "29.17 billion dollars"),
    (NumberValue(Decimal(10**9)), "1,000,000,001"), (AGE, "7 months"), (AGE, "seventy years"),

    (DAY, "13 May 1841 in Port Vannick"), (DAY, "1841"), (DAY, "May 1841"), (DAY, "12 May 1842"), (DAY, "12 June 1841"), (DAY, "05/12/1841"),
    (DAY, "not 12 May 1841"), (DAY, "12 or 13 May 1841"), (DAY, "either 12 May 1841 or 13 May 1841"), (DAY, "around 12 May 1841"), (DAY, "12 May"),
    (DAY, "12 May 1841 BC"), (DAY, "before 12 May 1841"), (DAY, "12 May 1841? No."), (DAY, "12-13 May 1841"), (DateValue(1841, 5, 13), "12-13 May 1841"),
    (YEAR, "12 May 1841"), (YEAR, "in the 1840s"), (YEAR, "circa 1841"), (YEAR, "c. 1841"), (YEAR, "1841 BC"), (YEAR, "by 1841"), (YEAR, "early 1841"),
    (YEAR, "from 1834 to 1841"), (YEAR, "1834-1841"), (YEAR, "1841-42"), (YEAR, "1834/1841"), (YEAR, "1841 metres"), (YEAR, "It was not built in 1841."),
    (YEAR, "1841 or 1842"), (YEAR, "probably 1841"), (YEAR, "18410"), (YEAR, "1841 ships"), (YEAR, "It cannot be 1842; it is 1841."), (YEAR, "1,841"), (DateValue(44), "44 BC"), (YEAR, "31 February 1841"),
    (YEAR, "Built 1834, raised 1841."), (YEAR, "after 1841"), (YEAR, "the 1841st"), (MONTH, "12 May 1841"), (YEAR, "the winter of 1841"),

    (ADA, "Holm"), (ADA, "Ada"), (ADA, "A. Holm"), (ADA, "Mrs Holm"), (ADA, "Jorun Holm"), (ADA, "Ada Holm and Jorun Pike"), (ADA, "Ada Holm or Jorun Pike"),
    (ADA, "Ada Holm, Jorun Pike"), (ADA, "Ada Holm/Jorun Pike"), (ADA, "Ada Holm & Jorun Pike"), (ADA, "Ada Holm's brother"), (ADA, "Ada Holm-Pike"),
    (ADA, "Jorun Pike was the sister of Ada Holm."), (ADA, "It was not Ada Holm."), (ADA, "It was not, as some say, Ada Holm."), (ADA, "Ada Holm was not."),
    (JORUN, "It was Ada Holm, not Jorun Pike."), (JORUN, "Ada Holm rather than Jorun Pike"), (ADA, "Ada Holm? No."), (ADA, "Ada Holm. That is wrong."),
    (ADA, "It was Jorun Pike. Ada Holm was her sister."), (ADA, "I think it was Ada Holm."), (ADA, "Perhaps Ada Holm"), (ADA, "not Ada Holm"), (ADA, ""),
    (ADA, "Anyone but Ada Holm"), (ADA, "Everyone except Ada Holm"), (ADA, "Ada Holm the Younger"), (ADA, "Ada Maria Holm"), (ADA, "Neither Ada Holm nor she"),
    (ADA, "Ada Holm | Jorun Pike"), (ADA, "Ada Holm as well as Jorun Pike"), (ADA, "Ada Holm together with Jorun Pike"), (ADA, "Ada Holm\nJorun Pike"),
    (ADA, "Ada Holm. Jorun Pike. Ola Brann."), (ADA, "The keeper was Jorun Pike, Ada Holm's successor"), (ADA, "Ada Holm (and later Jorun Pike)"),
    (ADA, "The first was Jorun Pike and the second was Ada Holm."), (ADA, "Jorun Pike was first, Ada Holm second."), (ADA, "Holm, Ada"),
    (ADA, "Not determined"), (ADA, "Jorun Pike (not Ada Holm)"), (ADA, "Ada Holm was appointed in 1834, and Jorun Pike in 1841."), (EntityValue("A. Holm"), "Holm"),
    (ADA, "The claim that it was Ada Holm is false."), (ADA, "After Ada Holm came Jorun Pike."), (ADA, "Ada Holm was succeeded. Jorun Pike."),
    (GUILD, "not the Guild of Glaziers"), (GUILD, "the Royal Guild of Glaziers"), (GUILD, "Guild of Glaziers of Vannick"), (GUILD, "Guild"), (GUILD, "Guild of Glazier"),
    (GUILD, "the Guild of Coopers"), (GUILD, "It was the Guild of Coopers, which hated the Guild of Glaziers."), (GUILD, "Old Guild of Glaziers"),
    (EntityValue("York"), "New York"), (EntityValue("New York"), "York"), (NORWAY, "northern Norway"), (NORWAY, "Norway Bay"), (NORWAY, "anti-Norway"),
    (LIGHT, "Gull Tower is taller than Brenn Light."), (LIGHT, "the Brenn Light keeper"), (EntityValue("Apollo 11"), "Apollo 12"), (EntityValue("C++"), "C#"),
    (CHINA, "China grew by 5.0 %, India by 6.8 %."), (CHINA, "India, ahead of China"), (EntityValue("Man's Land"), "No Man's Land"), (EntityValue("东京"), "东京都"),
    (EntityValue("George W. Bush"), "George Bush"), (COPPER, "copper sulphate"), (COPPER, "copper and tin"), (COPPER, "no copper"), (COPPER, "refined copper"),

    (several(US, dollars("18.53"), CHINA, dollars("29.17"), EntityValue("Germany"), dollars("4.59")), TOP_THREE), (several(US, CHINA), TOP_THREE),
    (several(US, CHINA, EntityValue("Japan")), TOP_THREE), (several(CHINA, RATE), "China at 5.1 %"), (several(CHINA, RATE), "India at 5.0 %"),
    (several(NORWAY, PERU, ordered=True), "Peru and Norway"), (several(NORWAY, PERU), "Norway, Peru and Chad"), (several(NORWAY, PERU), "Norway"),
    (several(NORWAY, PERU, CHAD), "Norway and Peru, but not Chad"), (several(NORWAY, PERU), "Norway or Peru"), (several(NORWAY, PERU), "Norway, Peru and Chad (new)"),
    (several(ADA, JORUN), "The keepers were Ada Holm, Ola Brann and Jorun Pike."), (several(ADA, JORUN), "- Ada Holm\n- Jorun Pike\n- Ola"), (several(ADA, JORUN), ""),
    (several(NORWAY, PERU), "Norway, Peru, and others"), (several(NORWAY, PERU), "Norway, Peru, etc."), (several(NORWAY, PERU), "Countries such as Norway and Peru"),
    (several(NORWAY, PERU), "Norway, Peru, and perhaps Chad"), (several(NORWAY, PERU), "Chad, Norway and Peru"), (several(NORWAY, PERU), "between Norway and Peru, including Chad"),
    (several(COPPER, TextValue("tin")), "copper, lead and tin"), (several(COUNT, NumberValue(Decimal(5))), "3, 5 and 7"), (several(COUNT, NumberValue(Decimal(5))), "3"),
    (several(YEAR, DateValue(1834)), "In 1834 and 1842."), (several(NORWAY, PERU), "Norway and Peru. Also Chad."), (several(NORWAY, PERU), "Probably Norway and Peru"),
    (several(NORWAY, YEAR, PERU, DateValue(1834)), "Norway in 1834 and Peru in 1841."), (several(NORWAY), "Norway and Peru"), (several(NORWAY, PERU), "neither Norway nor Peru"),
]  # fmt: skip


@pytest.mark.promise("facts:answers:read")
@pytest.mark.parametrize(("expected", "said"), AGREE)
def test_an_answer_that_states_the_value_agrees(expected: Value, said: str) -> None:
    assert answer_agrees(expected, said)


@pytest.mark.promise("facts:answers:read")
@pytest.mark.parametrize(("expected", "said"), DISAGREE)
def test_an_answer_that_states_another_value_or_none_does_not_agree(expected: Value, said: str) -> None:
    assert not answer_agrees(expected, said)


@pytest.mark.promise("facts:answers:read")
def test_names_and_numbers_of_the_question_are_no_other_answers() -> None:
    question = "Of the 80 lamps of Brenn Light, how many did Jorun Pike buy?"
    assert not answer_agrees(NumberValue(Decimal(12)), "Of the 80 lamps, Jorun Pike bought 12.")
    assert answer_agrees(
        NumberValue(Decimal(12)), "Of the 80 lamps, Jorun Pike bought 12.", question=question
    )
    said = "Jorun Pike, sister of Brenn Light's keeper Ada Holm"
    assert not answer_agrees(ADA, said)
    assert answer_agrees(ADA, "Brenn Light belonged to Ada Holm", question="Who owned Brenn Light?")
    assert not answer_agrees(ADA, "Brenn Light belonged to Ada Holm")


@pytest.mark.promise("facts:answers:read")
@pytest.mark.parametrize(
    ("said", "agrees"),
    [
        ("Brenn Light is taller than Gull Tower.", True),
        ("Gull Tower is taller than Brenn Light.", False),
        ("The taller one is Brenn Light.", True),
        ("Gull Tower", False),
        ("Brenn Light, not Gull Tower.", True),
    ],
)
def test_an_alternative_that_the_question_offers_is_chosen_only_where_the_answer_chooses_it(
    said: str, agrees: bool
) -> None:
    question = "Which is taller, Brenn Light or Gull Tower?"
    assert answer_agrees(LIGHT, said, question=question) is agrees


@pytest.mark.promise("facts:answers:read")
@pytest.mark.parametrize(
    ("said", "agrees"),
    [
        ("Ada Holm, the first keeper of Brenn Light, was born in Tern Bay.", True),
        ("In Tern Bay.", True),
        ("Ada Holm was born in Vessel Bay and died in Tern Bay.", False),
        ("Ada Holm was born in Tern Bay in Norway.", False),
        ("Ada Holm was born near Tern Bay, in Vessel Bay.", False),
        ("Ada Holm was not born in Tern Bay.", False),
    ],
)
def test_a_place_at_the_end_of_a_sentence_answers_a_question_for_a_place(said: str, agrees: bool) -> None:
    question = "In which bay was the first keeper of Brenn Light born?"
    assert answer_agrees(EntityValue("Tern Bay"), said, question=question) is agrees


@pytest.mark.promise("facts:answers:read")
@pytest.mark.parametrize(
    ("said", "agrees"),
    [
        ("Holm", True),
        ("A. Holm", True),
        ("Mrs Holm", True),
        ("It was Holm.", True),
        ("Jorun Holm", False),
        ("J. Holm", False),
        ("Holm Pike", False),
        ("not Holm", False),
        ("Ada", False),
    ],
)
def test_a_surname_alone_agrees_only_on_request(said: str, agrees: bool) -> None:
    assert answer_agrees(ADA, said, surname=True) is agrees
    assert not answer_agrees(ADA, said)


@pytest.mark.promise("facts:answers:read")
@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("no", "No, it was not.", True),
        ("yes", "No, it was not.", False),
        ("12 May 1841 in Port Vannick", "13 May 1841 in Port Vannick", False),
        ("not the Guild of Glaziers", "the Guild of Glaziers", False),
        ("the Guild of Glaziers", "It was the Guild of Glaziers.", True),
        ("Guild of Glaziers of Vannick", "Guild of Coopers of Vannick", False),
        ("China at 5.0 %", "China, with 5 percent", True),
        ("China at 5.0 %", "China, with 6 percent", False),
        ("Norway and Peru", "Peru, Norway", True),
        ("12 May 1841", "May 12, 1841", True),
        ("1,500", "There were 1500.", True),
        ("1834", "12 May 1834", False),
        ("they lit all the lamps at dusk each day", "they lit all of the lamps at dusk each day", True),
        ("they lit all the lamps at dusk each day", "they never lit all the lamps at dusk each day", False),
        ("they lit all 12 lamps at dusk each day", "they lit all 13 lamps at dusk each day", False),
        ("", "", False),
    ],
)
def test_answers_without_a_type_are_compared_by_the_type_they_show(one: str, other: str, same: bool) -> None:
    assert texts_agree(one, other) is same
    assert texts_agree(other, one) is same


@pytest.mark.promise("facts:answers:read")
def test_a_reading_returns_the_value_that_is_said() -> None:
    assert read_answer("34 feet", HIGH) == NumberValue(Decimal(34), "feet")
    assert read_answer("It was Jorun Pike.", ADA) == JORUN
    assert read_answer("34", HIGH) == HIGH
    assert read_answer("1841 or 1842", YEAR) is None
    assert read_answer("Norway, Peru and Chad", several(NORWAY, PERU)) == several(NORWAY, PERU, CHAD)
