"""Words of questions, and their translation back into programs."""

import pytest

from agentflow.facts import (
    Comparison,
    Operator,
    QuestionKind,
    RejectedWording,
    Translation,
    TranslationRequest,
    ValueKind,
    Wording,
    WordingRequest,
)
from agentflow.offline import answer
from agentflow.offline._expressions import Expression, flattened, nested

ISLANDS = Expression(Operator.MEMBERS, ("six inhabited islands of the Varrow Isles",))
LIGHTS = Expression(Operator.MEMBERS, ("four lighthouses of the Varrow Isles",))


def made(
    operator: Operator,
    *inputs: Expression | str,
    relation: str = "",
    comparison: Comparison = Comparison.EQUAL,
) -> Expression:
    """Return an expression."""
    return Expression(operator, inputs, relation, comparison)


def follow(subject: Expression | str, relation: str) -> Expression:
    """Return the values of a relation."""
    return made(Operator.FOLLOW, subject, relation=relation)


DEFINITE = (
    "Charter of Varrow", "Fenwright Compass", "Great Bell of Hallowick", "Grey Petrel", "Greywater Shipyard",
    "Guild of Glaziers", "Guild of Saltboilers", "House of Charts", "Lantern Feast", "Long Frost", "Ossel Canal",
    "Red Mackerel", "Salt Widow", "Tasker Clock", "Wrackham Salt Works",
)  # fmt: skip


def in_1900(subject: Expression | str) -> Expression:
    """Return the inhabitants of a thing in 1900."""
    return follow(subject, "number of inhabitants")._replace(time="1900")


def between(first: Expression, second: Expression) -> tuple[Expression, str]:
    """Return the years between two dates."""
    return made(Operator.DIFFERENCE, first, second), ""


QUESTIONS = {
    "In 1900, how many inhabitants did the main town of Ossel have?": (
        in_1900(follow("Ossel", "main town")),
        "inhabitants",
    ),
    "In 1900, did Alba have more inhabitants than Brenn?": (
        made(Operator.GREATER, in_1900("Alba"), in_1900("Brenn")),
        "",
    ),
    "In 1900, how many inhabitants did Alba and Brenn have together?": (
        made(Operator.SUM, in_1900("Alba"), in_1900("Brenn")),
        "inhabitants",
    ),
    "How many inhabitants do the main towns of Ossel and Tollen have together?": (
        made(
            Operator.SUM,
            *(follow(follow(island, "main town"), "number of inhabitants") for island in ("Ossel", "Tollen")),
        ),
        "inhabitants",
    ),
    "How many years apart were Alba and Brenn founded?": between(
        follow("Alba", "year of foundation"), follow("Brenn", "year of foundation")
    ),
    "How many years apart did the captains of the Grey Petrel and the Salt Widow die?": between(
        follow(follow("Grey Petrel", "captain"), "year of death"),
        follow(follow("Salt Widow", "captain"), "year of death"),
    ),
    "How many years passed between the launch of the Grey Petrel and the death of its captain?": between(
        follow("Grey Petrel", "year of launch"), follow(follow("Grey Petrel", "captain"), "year of death")
    ),
    "What is the main town of the place where the captain of the Grey Petrel was born?": (
        follow(follow(follow("Grey Petrel", "captain"), "birthplace"), "main town"),
        "",
    ),
    "On which date was the capital of Ruritania founded?": (
        follow(follow("Ruritania", "capital"), "date of foundation"),
        "",
    ),
    "What is the area of Ruritania, in km²?": (follow("Ruritania", "area"), "km²"),
    "Which of the two has the larger area, Ruritania or Freedonia?": (
        made(Operator.GREATEST, "Ruritania", "Freedonia", relation="area"),
        "",
    ),
    "How many of the six inhabited islands of the Varrow Isles have an area of less than 500 km²?": (
        made(
            Operator.COUNT,
            made(Operator.WHERE, ISLANDS, "500 km²", relation="area", comparison=Comparison.LESS),
        ),
        "",
    ),
    "Does Ruritania have a higher gross domestic product than Freedonia?": (
        made(
            Operator.GREATER,
            follow("Ruritania", "gross domestic product"),
            follow("Freedonia", "gross domestic product"),
        ),
        "",
    ),
    "Which of the two has the later year of accession, Ruritania or Freedonia?": (
        made(Operator.GREATEST, "Ruritania", "Freedonia", relation="year of accession"),
        "",
    ),
    "Where was the captain of the Grey Petrel born?": (
        follow(follow("Grey Petrel", "captain"), "birthplace"),
        "",
    ),
    "In which year was the captain of the Grey Petrel born?": (
        follow(follow("Grey Petrel", "captain"), "year of birth"),
        "",
    ),
    "How many inhabitants are there in the place where the captain of the Grey Petrel was born?": (
        follow(follow(follow("Grey Petrel", "captain"), "birthplace"), "number of inhabitants"),
        "inhabitants",
    ),
    "In which year was the place founded where the Grey Petrel was built?": (
        follow(follow("Grey Petrel", "place of construction"), "year of foundation"),
        "",
    ),
    "How many metres long is the ship whose captain was Ilsa Venn?": (
        follow(made(Operator.FIND, "Ilsa Venn", relation="captain"), "length"),
        "metres",
    ),
    "How many metres long is the ship that was designed by Jonet Harl and launched in 1629?": (
        follow(
            made(
                Operator.AND,
                made(Operator.FIND, "Jonet Harl", relation="designer"),
                made(Operator.FIND, "1629", relation="year of launch"),
            ),
            "length",
        ),
        "metres",
    ),
    "Which of the two was founded later, the Guild of Glaziers or the House of Charts?": (
        made(Operator.GREATEST, "Guild of Glaziers", "House of Charts", relation="year of foundation"),
        "",
    ),
    "Which of the two is shorter, the Grey Petrel or the Red Mackerel?": (
        made(Operator.LEAST, "Grey Petrel", "Red Mackerel", relation="length"),
        "",
    ),
    "Who was born earlier, the captain of the Grey Petrel or the owner of the Red Mackerel?": (
        made(
            Operator.LEAST,
            follow("Grey Petrel", "captain"),
            follow("Red Mackerel", "owner"),
            relation="year of birth",
        ),
        "",
    ),
    "Which ship was launched last: the Grey Petrel, the Red Mackerel or the Salt Widow?": (
        made(Operator.GREATEST, "Grey Petrel", "Red Mackerel", "Salt Widow", relation="year of launch"),
        "",
    ),
    "Which of the six inhabited islands of the Varrow Isles has the most inhabitants?": (
        made(Operator.GREATEST, ISLANDS, relation="number of inhabitants"),
        "",
    ),
    "Of the six inhabited islands of the Varrow Isles, what is the main town of the one with the most inhabitants?": (
        follow(made(Operator.GREATEST, ISLANDS, relation="number of inhabitants"), "main town"),
        "",
    ),
    "Who designed the tallest of the four lighthouses of the Varrow Isles?": (
        follow(made(Operator.GREATEST, LIGHTS, relation="height"), "designer"),
        "",
    ),
    "In which year was the lower of Vannick Light and Needle Light built?": (
        follow(
            made(Operator.LEAST, "Vannick Light", "Needle Light", relation="height"), "year of construction"
        ),
        "",
    ),
    "Which ship was built at the Greywater Shipyard and launched in 1711?": (
        made(
            Operator.AND,
            made(Operator.FIND, "Greywater Shipyard", relation="place of construction"),
            made(Operator.FIND, "1711", relation="year of launch"),
        ),
        "",
    ),
    "What was designed by Jonet Harl and owned by the Guild of Saltboilers?": (
        made(
            Operator.AND,
            made(Operator.FIND, "Jonet Harl", relation="designer"),
            made(Operator.FIND, "Guild of Saltboilers", relation="owner"),
        ),
        "",
    ),
    "Who was the captain of the Grey Petrel and founded Port Vannick?": (
        made(Operator.AND, follow("Grey Petrel", "captain"), follow("Port Vannick", "founder")),
        "",
    ),
    "How many of the six inhabited islands of the Varrow Isles have fewer than 3,000 inhabitants?": (
        made(
            Operator.COUNT,
            made(
                Operator.WHERE,
                ISLANDS,
                "3,000 inhabitants",
                relation="number of inhabitants",
                comparison=Comparison.LESS,
            ),
        ),
        "",
    ),
    "How many of the four lighthouses of the Varrow Isles were built before 1700?": (
        made(
            Operator.COUNT,
            made(Operator.WHERE, LIGHTS, "1700", relation="year of construction", comparison=Comparison.LESS),
        ),
        "",
    ),
    "How many of the four lighthouses of the Varrow Isles are more than 30 metres tall?": (
        made(
            Operator.COUNT,
            made(Operator.WHERE, LIGHTS, "30 metres", relation="height", comparison=Comparison.MORE),
        ),
        "",
    ),
    "How many of the four lighthouses of the Varrow Isles were designed by Lucan Thorne?": (
        made(
            Operator.COUNT,
            made(Operator.AND, LIGHTS, made(Operator.FIND, "Lucan Thorne", relation="designer")),
        ),
        "",
    ),
    "Which of the four lighthouses of the Varrow Isles were designed by Lucan Thorne?": (
        made(
            Operator.LIST,
            made(Operator.AND, LIGHTS, made(Operator.FIND, "Lucan Thorne", relation="designer")),
        ),
        "",
    ),
    "Which of the six inhabited islands of the Varrow Isles have more than 5,000 inhabitants?": (
        made(
            Operator.LIST,
            made(
                Operator.WHERE,
                ISLANDS,
                "5,000 inhabitants",
                relation="number of inhabitants",
                comparison=Comparison.MORE,
            ),
        ),
        "",
    ),
    "Which of the six inhabited islands of the Varrow Isles has more than 25,000 inhabitants?": (
        made(
            Operator.WHERE,
            ISLANDS,
            "25,000 inhabitants",
            relation="number of inhabitants",
            comparison=Comparison.MORE,
        ),
        "",
    ),
    "What is the main town of each of the six inhabited islands of the Varrow Isles?": (
        made(Operator.LIST, follow(ISLANDS, "main town")),
        "",
    ),
    "How many inhabitants do the six inhabited islands of the Varrow Isles have in total?": (
        made(Operator.SUM, follow(ISLANDS, "number of inhabitants")),
        "inhabitants",
    ),
    "What is the total height of Vannick Light and Needle Light, in metres?": (
        made(Operator.SUM, follow("Vannick Light", "height"), follow("Needle Light", "height")),
        "metres",
    ),
    "How many inhabitants do Ossel and Quillan have together?": (
        made(
            Operator.SUM, follow("Ossel", "number of inhabitants"), follow("Quillan", "number of inhabitants")
        ),
        "inhabitants",
    ),
    "How many years passed between the foundation of Port Vannick and the launch of the Grey Petrel?": (
        made(
            Operator.DIFFERENCE,
            follow("Port Vannick", "year of foundation"),
            follow("Grey Petrel", "year of launch"),
        ),
        "years",
    ),
    "How many years passed between the death of the captain of the Grey Petrel and the launch of the Grey Petrel?": (
        made(
            Operator.DIFFERENCE,
            follow(follow("Grey Petrel", "captain"), "year of death"),
            follow("Grey Petrel", "year of launch"),
        ),
        "years",
    ),
    "By how many metres do Vannick Light and Needle Light differ in height?": (
        made(Operator.DIFFERENCE, follow("Vannick Light", "height"), follow("Needle Light", "height")),
        "metres",
    ),
    "What is the difference between the number of inhabitants of Ossel and that of Quillan?": (
        made(
            Operator.DIFFERENCE,
            follow("Ossel", "number of inhabitants"),
            follow("Quillan", "number of inhabitants"),
        ),
        "inhabitants",
    ),
    "By how many tonnes do the Tasker Clock and the Great Bell of Hallowick differ in weight?": (
        made(
            Operator.DIFFERENCE, follow("Tasker Clock", "weight"), follow("Great Bell of Hallowick", "weight")
        ),
        "tonnes",
    ),
    "Was Port Vannick founded before Hallowick?": (
        made(
            Operator.BEFORE,
            follow("Port Vannick", "year of foundation"),
            follow("Hallowick", "year of foundation"),
        ),
        "",
    ),
    "Did Ilsa Venn die before Corvin Ashdown was born?": (
        made(
            Operator.BEFORE, follow("Ilsa Venn", "year of death"), follow("Corvin Ashdown", "year of birth")
        ),
        "",
    ),
    "Was the captain of the Grey Petrel born before the Grey Petrel was launched?": (
        made(
            Operator.BEFORE,
            follow(follow("Grey Petrel", "captain"), "year of birth"),
            follow("Grey Petrel", "year of launch"),
        ),
        "",
    ),
    "Did the Grey Petrel sink before 1800?": (
        made(Operator.BEFORE, follow("Grey Petrel", "year of sinking"), "1800"),
        "",
    ),
    "Is Vannick Light taller than Needle Light?": (
        made(Operator.GREATER, follow("Vannick Light", "height"), follow("Needle Light", "height")),
        "",
    ),
    "Does Ossel have more inhabitants than Quillan?": (
        made(
            Operator.GREATER,
            follow("Ossel", "number of inhabitants"),
            follow("Quillan", "number of inhabitants"),
        ),
        "",
    ),
    "Is the Tasker Clock heavier than the Great Bell of Hallowick?": (
        made(Operator.GREATER, follow("Tasker Clock", "weight"), follow("Great Bell of Hallowick", "weight")),
        "",
    ),
    "Does the Tasker Clock weigh more than 2 tonnes?": (
        made(Operator.GREATER, follow("Tasker Clock", "weight"), "2 tonnes"),
        "",
    ),
    "Did Vannick Light and Cape Sorrow Light have the same designer?": (
        made(Operator.EQUAL, follow("Vannick Light", "designer"), follow("Cape Sorrow Light", "designer")),
        "",
    ),
    "Was Vannick Light designed by Lucan Thorne?": (
        made(Operator.EQUAL, follow("Vannick Light", "designer"), "Lucan Thorne"),
        "",
    ),
    "Was Marit Sande the first keeper of Vannick Light?": (
        made(Operator.EQUAL, follow("Vannick Light", "first keeper"), "Marit Sande"),
        "",
    ),
    "Was the Charter of Varrow sealed in the year in which Port Vannick was founded?": (
        made(
            Operator.EQUAL,
            follow("Charter of Varrow", "year of sealing"),
            follow("Port Vannick", "year of foundation"),
        ),
        "",
    ),
    "Were A B and Port Vannick founded in the same year?": (
        made(
            Operator.EQUAL, follow("A B", "year of foundation"), follow("Port Vannick", "year of foundation")
        ),
        "",
    ),
    "Was the birthplace of Lucan Thorne also the main town of Maddon?": (
        made(Operator.EQUAL, follow("Lucan Thorne", "birthplace"), follow("Maddon", "main town")),
        "",
    ),
    "Where is the hall of the owner of the Salt Widow located?": (
        follow(follow("Salt Widow", "owner"), "location of the hall"),
        "",
    ),
    "How many members does the owner of the Salt Widow have?": (
        follow(follow("Salt Widow", "owner"), "number of members"),
        "members",
    ),
    "After whom or what is the designer of Vannick Light named?": (
        follow(follow("Vannick Light", "designer"), "namesake"),
        "",
    ),
    "In which year were the Wrackham Salt Works built?": (
        follow("Wrackham Salt Works", "year of construction"),
        "",
    ),
    "Where are the notebooks of the designer of the Ossel Canal located?": (
        follow(follow("Ossel Canal", "designer"), "location of the notebooks"),
        "",
    ),
    "Which lighthouse was designed by Lucan Thorne and built in 1621?": (
        made(
            Operator.AND,
            made(Operator.FIND, "lighthouse", relation="kind"),
            made(Operator.FIND, "Lucan Thorne", relation="designer"),
            made(Operator.FIND, "1621", relation="year of construction"),
        ),
        "",
    ),
    "Who was born in Skarrahold in 1715?": (
        made(
            Operator.AND,
            made(Operator.FIND, "Skarrahold", relation="birthplace"),
            made(Operator.FIND, "1715", relation="year of birth"),
        ),
        "",
    ),
    "How many patents did the inventor of the Fenwright Compass hold?": (
        follow(follow("Fenwright Compass", "inventor"), "number of patents"),
        "patents",
    ),
    "How many tonnes does the Tasker Clock weigh?": (follow("Tasker Clock", "weight"), "tonnes"),
    "How many crowns does Kelder Bridge cost?": (follow("Kelder Bridge", "price"), "crowns"),
    "How many days did the Long Frost last?": (follow("Long Frost", "duration"), "days"),
    "How many leagues does the beam of Vannick Light reach?": (
        follow("Vannick Light", "range of the beam"),
        "leagues",
    ),
    "How many sailors did the Grey Petrel carry?": (follow("Grey Petrel", "number of sailors"), "sailors"),
    "Which of the two is more expensive, Kelder Bridge or the Great Bell of Hallowick?": (
        made(Operator.GREATEST, "Kelder Bridge", "Great Bell of Hallowick", relation="price"),
        "",
    ),
    "Which of the two lasted longer, the Long Frost or the Lantern Feast?": (
        made(Operator.GREATEST, "Long Frost", "Lantern Feast", relation="duration"),
        "",
    ),
    "How many of the four lighthouses of the Varrow Isles were built in the 1830s?": (
        made(
            Operator.COUNT,
            made(
                Operator.WHERE,
                LIGHTS,
                "1830",
                "1839",
                relation="year of construction",
                comparison=Comparison.WITHIN,
            ),
        ),
        "",
    ),
}


def relations_of(part: Expression | str) -> set[str]:
    """Return the relations of an expression."""
    if isinstance(part, str):
        return set()
    return {part.relation}.union(*map(relations_of, part.inputs)) - {""}


RELATIONS = tuple(sorted(set[str]().union(*(relations_of(whole) for whole, _ in QUESTIONS.values()))))


def request(whole: Expression, unit: str = "", **more: tuple[str, ...]) -> WordingRequest:
    """Return the request for the words of a program."""
    return WordingRequest(
        kind=QuestionKind.BRIDGE,
        program=(),
        answer_kind=ValueKind.TEXT,
        unit=unit,
        facts=more.get("facts", ()),
        given=(),
        max_words=40,
        seed="",
        steps=flattened(whole),
        definite=DEFINITE,
        nouns=more.get("nouns", ()),
    )


def translated(question: str) -> Expression | None:
    """Return the program that the engine reads in a question."""
    sets = tuple(str(each.inputs[0]) for each in (ISLANDS, LIGHTS))
    found = answer(TranslationRequest(question=question, relations=RELATIONS, sets=sets))
    assert isinstance(found, Translation)
    return nested(found.steps)


@pytest.mark.promise("offline:wording")
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_program_has_natural_words(question: str) -> None:
    assert answer(request(*QUESTIONS[question])) == Wording(question)


@pytest.mark.promise("offline:translation")
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_translated_back_into_its_program(question: str) -> None:
    assert translated(question) == QUESTIONS[question][0]


@pytest.mark.promise("offline:wording")
def test_the_facts_decide_the_tense() -> None:
    whole = follow(follow("Grey Petrel", "owner"), "number of members")
    assert answer(request(whole, facts=("It counted 140 members",))) == Wording(
        "How many members did the owner of the Grey Petrel have?"
    )
    owner = follow(follow("Alba", "flagship"), "owner")
    assert answer(request(owner, facts=("The owner of [A] was Ida Holt",))) == Wording(
        "Who owned the flagship of Alba?"
    )


@pytest.mark.promise("offline:wording")
def test_the_facts_decide_the_article() -> None:
    whole = follow(follow("Northern Candle", "captain"), "birthplace")
    said = "The captain of the Northern Candle was [A]"
    assert answer(request(whole, facts=(said,))) == Wording(
        "Where was the captain of the Northern Candle born?"
    )
    inside = follow(follow("Emberlee", "main town"), "founder")
    assert answer(request(inside, facts=("The Emberlee Library stands in [A]",))) == Wording(
        "Who founded the main town of Emberlee?"
    )
    guild = follow(follow("Guild of Rowers", "founder"), "birthplace")
    assert answer(request(guild)) == Wording("Where was the founder of the Guild of Rowers born?")


@pytest.mark.promise("offline:wording")
def test_things_without_a_name_have_the_noun_of_their_class() -> None:
    found = made(Operator.FIND, "Jonet Harl", relation="designer")
    assert answer(request(follow(found, "length"), "metres", nouns=("barge",))) == Wording(
        "How many metres long is the barge designed by Jonet Harl?"
    )


@pytest.mark.promise("offline:wording")
def test_a_program_without_natural_words_has_none() -> None:
    whole = follow("Alba", "founder")
    assert answer(request(made(Operator.SUM, whole, "3"))) == Wording("")
    assert answer(request(made(Operator.OR, whole, whole))) == Wording("")
    first = request(whole)
    rejected = RejectedWording("Who founded Alba?", ("unclear",))
    again = WordingRequest(
        kind=first.kind, program=(), answer_kind=first.answer_kind, facts=(), given=(), max_words=40, seed="",
        steps=first.steps, rejected=(rejected,),
    )  # fmt: skip
    assert answer(again) == Wording("")


@pytest.mark.promise("offline:translation")
@pytest.mark.parametrize(
    ("question", "same_as"),
    [
        ("When was the captain of the Grey Petrel born?", "In which year was the captain of the Grey Petrel born?"),
        ("What is the birthplace of the captain of the Grey Petrel?", "Where was the captain of the Grey Petrel born?"),
        ("Who was the designer of the tallest of the four lighthouses of the Varrow Isles?",
         "Who designed the tallest of the four lighthouses of the Varrow Isles?"),
        ("Was Vannick Light built by Lucan Thorne in haste?", ""),
        ("Which number is missing from “X has … gates”?", ""),
        ("Where was the cook of the Grey Petrel born?", ""),
        ("Where was the captain born?", ""),
        ("Who is it?", ""),
        ("", ""),
        ("奥塞尔岛有多少居民？", ""),
        ("Which of the two and the two and " * 100, ""),
        ("the one of the one of that that the " * 15, ""),
        ("How many years passed between the birth of A and B and the birth of C and D and E and F?", ""),
    ],
)  # fmt: skip
def test_similar_words_are_understood_and_others_are_not(question: str, same_as: str) -> None:
    expected = QUESTIONS[same_as][0] if same_as else None
    assert translated(question) == expected


@pytest.mark.promise("offline:translation")
def test_steps_that_refer_to_later_ones_are_refused() -> None:
    steps = flattened(follow(follow("Alba", "founder"), "birthplace"))
    assert nested(steps) is not None
    assert nested(steps[1:]) is None
    assert nested(()) is None
