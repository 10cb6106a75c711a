"""Element names in forks."""

from hypothesis import given
from hypothesis import strategies as st

from mcp_servers.browser._snapshots import RefNames, is_ref, without_refs

KNOWN = '- main [ref=f1e1]:\n  - heading "A" [level=1] [ref=f1e2]\n  - button "B" [ref=f1e7]\n  - iframe [ref=f1e9]:\n    - link "C" [ref=f2e1]'
REAL = '- main [ref=f4e1]:\n  - heading "A" [level=1] [ref=f4e2]\n  - button "B" [ref=f4e3]\n  - iframe [ref=f4e4]:\n    - link "C" [ref=f5e1]'


def test_a_ref_is_distinguished_from_a_selector() -> None:
    assert all(is_ref(name) for name in ("e1", "e42", "f1e3"))
    assert not any(is_ref(name) for name in ("e", "button", "fe1", "e1 > p", "", "E1", "#e1"))


def test_equal_pages_have_the_parent_s_names_and_new_elements_have_others() -> None:
    names = RefNames()
    assert names.align(KNOWN, REAL) == ""
    assert names.shown(REAL) == KNOWN
    assert names.real_name("f1e7") == "f4e3"
    later = REAL + '\n  - button "D" [ref=f4e5]'
    shown = names.shown(later)
    new = shown.rpartition("[ref=")[2].removesuffix("]")
    assert new not in KNOWN
    assert names.real_name(new) == "f4e5"
    assert names.real_name("f1e5") not in REAL


def test_different_pages_share_the_names_of_equal_elements() -> None:
    names = RefNames()
    changed = REAL.replace('button "B" [ref=f4e3]', 'button "Z" [ref=f4e3]')
    assert names.align(KNOWN, changed) == '- button "B"'
    assert names.real_name("f2e1") == "f5e1"
    assert names.real_name("f1e7") not in changed


refs = st.from_regex(r"(f[12])?e[1-9][0-9]?", fullmatch=True)


@given(st.lists(refs, unique=True, max_size=12), st.lists(refs, unique=True, max_size=12), st.lists(refs))
def test_no_two_elements_share_a_name(recorded: list[str], real: list[str], later: list[str]) -> None:
    names = RefNames()
    names.align(*("\n".join(f"- button [ref={name}]" for name in some) for some in (recorded, real)))
    shown = {names.shown_name(name) for name in {*real, *later}}
    assert len(shown) == len({*real, *later})
    assert {names.real_name(name) for name in shown} == {*real, *later}


@given(st.text())
def test_every_text_is_searched_without_an_error(text: str) -> None:
    names = RefNames()
    names.align(text, KNOWN)
    names.align(KNOWN, text)
    assert without_refs(names.shown(text)) == without_refs(text)
