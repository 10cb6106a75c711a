"""Facts that observations state, and questions made from them: typed values, a store, programs, skeletons, requests.

A value is read from a text that states it, shown, and compared by type. Training data and scores use this comparison::

    from agentflow.facts import ValueKind, answer_agrees, parse_value

    built = parse_value("12 May 1841", ValueKind.DATE)
    assert built and answer_agrees(built, "It was built on May 12, 1841.")
    assert not answer_agrees(built, "13 May 1841 in Port Vannick")
"""

from agentflow.facts._building import (
    MAX_ALIAS_PAIRS,
    ChunkExtraction,
    StoreBuild,
    build_store,
    merge_aliases,
)
from agentflow.facts._chunks import TextChunk, chunks_of
from agentflow.facts._contradictions import Claim, claims_of, contradictions, is_single, values_conflict
from agentflow.facts._descriptions import describe_program
from agentflow.facts._enumeration import enumerate_skeletons, overlaps, select_questions, skeleton_of
from agentflow.facts._evaluation import DerivedAnswer, ProgramAnswers, answer_of, evaluate
from agentflow.facts._facts import KIND, ClosedSet, Fact, FactSpan
from agentflow.facts._hiding import HIDDEN, hide_facts, stating_spans
from agentflow.facts._levels import HIGHEST_LEVEL, obfuscate
from agentflow.facts._locating import FactFault, FaultKind, instructs, locate, locate_set, new_fact, new_set
from agentflow.facts._mentions import name_spans, outside, value_spans
from agentflow.facts._names import normalise_name
from agentflow.facts._passages import PassagePiece, ReaderPassage, TreePassages, passages_for
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
from agentflow.facts._support import (
    closed_sets,
    minimal_support,
    needed_facts,
    relates_to_seed,
    seed_distances,
    support_distance,
)
from agentflow.facts._tables import TableReading, read_tables
from agentflow.facts._translation import program_of, same_meaning
from agentflow.facts._untyped import infer_value, texts_agree
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
    "HIDDEN",
    "HIGHEST_LEVEL",
    "KIND",
    "MAX_ALIAS_PAIRS",
    "AliasJudgement",
    "AliasPair",
    "AliasRequest",
    "BoolValue",
    "ChunkExtraction",
    "Claim",
    "ClosedBookRequest",
    "ClosedSet",
    "Comparison",
    "DateValue",
    "DerivedAnswer",
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
    "FactFault",
    "FactSpan",
    "FactStore",
    "FaultKind",
    "ListValue",
    "NumberValue",
    "Operator",
    "PassagePiece",
    "Program",
    "ProgramAnswers",
    "ProgramInput",
    "ProgramStep",
    "QuestionKind",
    "ReaderPassage",
    "RejectedWording",
    "ScalarValue",
    "Skeleton",
    "StoreBuild",
    "TableReading",
    "TextChunk",
    "TextValue",
    "Translation",
    "TranslationRequest",
    "TranslationStep",
    "TreePassages",
    "Value",
    "ValueKind",
    "Wording",
    "WordingRequest",
    "answer_agrees",
    "answer_of",
    "build_store",
    "chunks_of",
    "claims_of",
    "closed_sets",
    "contradictions",
    "describe_program",
    "enumerate_skeletons",
    "evaluate",
    "hide_facts",
    "infer_value",
    "instructs",
    "is_single",
    "kind_of",
    "locate",
    "locate_set",
    "merge_aliases",
    "minimal_support",
    "name_spans",
    "needed_facts",
    "new_fact",
    "new_set",
    "normalise_name",
    "obfuscate",
    "outside",
    "overlaps",
    "parse_value",
    "passages_for",
    "program_of",
    "read_answer",
    "read_tables",
    "relates_to_seed",
    "same_meaning",
    "seed_distances",
    "select_questions",
    "show_value",
    "skeleton_of",
    "stating_spans",
    "support_distance",
    "texts_agree",
    "value_spans",
    "values_agree",
    "values_conflict",
]
