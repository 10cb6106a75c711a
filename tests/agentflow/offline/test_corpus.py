"""The bundled corpus and seeds."""

import re
from collections import Counter

import pytest

from tests.agentflow.offline._walks import Document, documents, search, seeds


def named(document: Document) -> set[str]:
    """Return the titles of other documents in a text; a title within a longer one does not count."""
    text, found = document.text, set[str]()
    for title in sorted((other.title for other in documents()), key=len, reverse=True):
        pattern = rf"\b{re.escape(title)}(?!\w)"
        if re.search(pattern, text):
            found.add(title)
            text = re.sub(pattern, "#", text)
    return found - {document.title}


@pytest.mark.promise("offline:corpus")
def test_ids_and_titles_are_unique_and_texts_have_similar_lengths() -> None:
    assert 60 <= len(documents()) <= 100
    assert len({document.id for document in documents()}) == len(documents())
    assert len({document.title for document in documents()}) == len(documents())
    assert {
        document.id for document in documents() if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", document.id)
    } == set()
    sizes = {document.id: len(document.text.split()) for document in documents()}
    assert {id_: size for id_, size in sizes.items() if not 80 <= size <= 200} == {}


@pytest.mark.promise("offline:corpus")
def test_every_document_mentions_others_and_is_mentioned() -> None:
    links = {document.title: named(document) for document in documents()}
    assert {title: found for title, found in links.items() if not 2 <= len(found) <= 7} == {}
    incoming = Counter(title for found in links.values() for title in found)
    assert {document.title for document in documents()} - incoming.keys() == set()


@pytest.mark.promise("offline:seeds")
def test_every_seed_names_a_subject_of_the_corpus() -> None:
    assert len(set(seeds())) == len(seeds()) == 12
    for content in seeds():
        assert any(document.title in content for document in documents()), content
        assert search(content) != "no hits"
