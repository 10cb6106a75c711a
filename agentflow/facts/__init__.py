"""Facts that observations state, and questions made from them: typed values, a store, programs, skeletons, requests.

A value is read from a text that states it, shown, and compared by type. Training data and scores use this comparison::

    from agentflow.facts import ValueKind, answer_agrees, parse_value

    built = parse_value("12 May 1841", ValueKind.DATE)
    assert built and answer_agrees(built, "It was built on May 12, 1841.")
    assert not answer_agrees(built, "13 May 1841 in Port Vannick")
"""

from agentflow.facts._facts import KIND, ClosedSet, Fact, FactSpan
from agentflow.facts._names import normalise_name
from agentflow.facts._programs import Comparison, Operator, Program, ProgramInput, ProgramStep
from agentflow.facts._reading import answer_agrees, read_answer
from agentflow.facts._requests import (
    AliasJudgement,
    AliasPair,
    AliasRequest,
    ClosedBookRequest,
    EvidenceAnswer,
    EvidencePassage,
    EvidenceRequest,
    ExtractedFact,
    ExtractedSet,
    Extraction,
    ExtractionRequest,
    RejectedWording,
    Translation,
    TranslationRequest,
    TranslationStep,
    Wording,
    WordingRequest,
)
from agentflow.facts._skeletons import Description, QuestionKind, Skeleton
from agentflow.facts._store import FactStore
from agentflow.facts._values import (
    BoolValue,
    DateValue,
    EntityValue,
    ListValue,
    NumberValue,
    ScalarValue,
    TextValue,
    Value,
    ValueKind,
    kind_of,
    parse_value,
    show_value,
    values_agree,
)

__all__ = [
    "KIND",
    "AliasJudgement",
    "AliasPair",
    "AliasRequest",
    "BoolValue",
    "ClosedBookRequest",
    "ClosedSet",
    "Comparison",
    "DateValue",
    "Description",
    "EntityValue",
    "EvidenceAnswer",
    "EvidencePassage",
    "EvidenceRequest",
    "ExtractedFact",
    "ExtractedSet",
    "Extraction",
    "ExtractionRequest",
    "Fact",
    "FactSpan",
    "FactStore",
    "ListValue",
    "NumberValue",
    "Operator",
    "Program",
    "ProgramInput",
    "ProgramStep",
    "QuestionKind",
    "RejectedWording",
    "ScalarValue",
    "Skeleton",
    "TextValue",
    "Translation",
    "TranslationRequest",
    "TranslationStep",
    "Value",
    "ValueKind",
    "Wording",
    "WordingRequest",
    "answer_agrees",
    "kind_of",
    "normalise_name",
    "parse_value",
    "read_answer",
    "show_value",
    "values_agree",
]
