"""A scripted doctor that can read findings, and mostly asks what comes to mind."""

from random import Random

from examples.learning_to_ask.game import COMPLAINTS, FINDINGS, QUESTIONS, findings_of
from examples.library import Messages

__all__ = ["teach"]

HASTY, ANY = 0.1, 0.6
"""Shares of turns that end with a guess, and of questions that are any of the eight."""


def teach(messages: Messages, random: Random) -> str:
    """Return the next question, or the diagnosis; a finding that is not known is guessed."""
    words = messages[0]["content"].split()
    complaint, possible = words[1], words[3:]
    known, questions = findings_of(messages), COMPLAINTS[complaint]
    missing = [each for each in questions if each not in known]
    if missing and len(messages) // 2 < QUESTIONS and random.random() > HASTY:
        return f"ask {random.choice(list(FINDINGS) if random.random() < ANY else missing)}"
    guesses = [random.choice(possible[:2]), random.choice(possible[2:])]
    found = [known.get(question, guess) for question, guess in zip(questions, guesses, strict=True)]
    return f"diagnosis {' '.join(found)} {complaint}"
