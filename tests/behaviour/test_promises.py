"""Every promise has a test, and every mark names a promise."""

import re

from tests._features import all_tests, written_promises

PROMISE_ID = re.compile(r"[a-z0-9_]+(:[a-z0-9_.\-]+){1,2}")


def shown() -> dict[str, str]:
    """Return every promise that a test names, with one test that names it."""
    return {promise: test.id for test in all_tests() for promise in test.promises}


def test_every_promise_has_a_test() -> None:
    assert sorted(written_promises().keys() - shown().keys()) == []


def test_every_promise_that_a_test_names_is_written_down() -> None:
    unwritten = {promise: path for promise, path in shown().items() if promise not in written_promises()}
    assert unwritten == {}


def test_promises_have_ids_of_area_and_feature_and_say_one_sentence() -> None:
    malformed = [
        promise
        for promise, sentence in written_promises().items()
        if not PROMISE_ID.fullmatch(promise) or not sentence.endswith(".") or "\n" in sentence
    ]
    assert malformed == []
