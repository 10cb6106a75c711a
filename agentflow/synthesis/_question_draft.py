"""Drafts of questions, and the votes of the checks on them."""

from enum import StrEnum

from msgspec import Struct

from agentflow.facts import Program, QuestionKind, Value


class Check(StrEnum):
    """Check of a question. The set is closed: reports count by it."""

    QUESTION = "question"
    """It asks something."""
    VERBOSITY = "verbosity"
    """It is not too long."""
    SELF_CONTAINED = "self_contained"
    """It is understandable without the tree."""
    LEAKAGE = "leakage"
    """It contains neither its answer nor a hidden name."""
    NAMES = "names"
    """It contains the names that it is about, and nothing that its program does not use."""
    ANSWER = "answer"
    """Its program computes the answer, and no other one."""
    SUPPORT = "support"
    """Its facts are stated by enough observations."""
    CONTRADICTION = "contradiction"
    """No observation contradicts its facts."""
    SEED = "seed"
    """Its facts are connected to the seed."""
    PICTURES = "pictures"
    """A model confirms that images show the facts that were extracted from them."""
    MEANING = "meaning"
    """A reader translates it into the same program."""
    EVIDENCE = "evidence"
    """A reader answers it from the evidence."""
    TOO_EASY = "too_easy"
    """A model can't answer it without evidence."""
    HOPS = "hops"
    """A reader needs enough of its facts."""
    ALTERNATIVES = "alternatives"
    """A search finds no other answer."""


class Finding(Struct, frozen=True):
    """Fault that a check found."""

    check: Check
    """The check."""
    reason: str
    """The fault, in one line."""


class Vote(Struct, frozen=True, omit_defaults=True):
    """Result of a check by a model."""

    check: Check
    """The check."""
    samples: int
    """Samples that were answered."""
    agreed: int
    """Samples in favour of the question."""
    said: tuple[str, ...] = ()
    """Results of the samples, each in one line."""


class QuestionDraft(Struct, frozen=True, kw_only=True):
    """A question with its computed answer, before the checks."""

    question: str
    """The question."""
    kind: QuestionKind
    """Kind."""
    program: Program
    """Computes the answer."""
    answer: Value
    """The answer."""
    facts: tuple[str, ...]
    """Ids of the facts that it claims to need, in the order of the program."""
    given: tuple[str, ...] = ()
    """Names that it should contain."""
    hidden: tuple[str, ...] = ()
    """Names that it must not contain."""
    level: int = 0
    """Obfuscation level."""


class CheckedQuestion(Struct, frozen=True, kw_only=True):
    """Result of the checks of a draft."""

    findings: tuple[Finding, ...] = ()
    """Faults; empty if there is none. Checks are run cheapest first and end with the first that finds a fault."""
    votes: tuple[Vote, ...] = ()
    """Votes of the checks by models, in order."""
    needed: tuple[str, ...] = ()
    """Ids of the facts that a reader needs, in the order of the draft."""
    support: tuple[str, ...] = ()
    """Ids of the fewest nodes that state them, in path order."""
    reworded: bool = False
    """The fault is in the words, so that other words may pass."""

    @property
    def accepted(self) -> bool:
        """No check found a fault."""
        return not self.findings
