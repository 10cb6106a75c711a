"""Translation of questions into programs: the inverse of the wording, for known relations and sets only."""

import re
from collections.abc import Sequence
from functools import lru_cache

from agentflow.facts import Operator, Translation, TranslationRequest, TranslationStep
from agentflow.offline._expressions import Expression, flattened, limited_to
from agentflow.offline._phrase_parser import (
    ANY_UNIT,
    OF,
    UNIT,
    YEAR,
    PhraseParser,
    asked_regex,
    lowered,
    name_in,
    regex,
    slot_regex,
    splits,
)
from agentflow.offline._relations import YEAR_IN, RelationWords

_START = re.compile(r"(?:How|Which|Who|What|Where|When|In|By|After|Was|Were|Is|Are|Did|Do|Does|For|Of|On)\b")
_LINKS = re.compile(r" and |, | of the ")
_ITS = re.compile(r"\bits ([a-z][a-z’'-]*(?: (?!is\b|are\b|was\b|were\b)[a-z’'-]+)*)")
_MOST_LINKS = 12
"""Number of links between phrases of the most complex question that is read."""
_LONGEST = 400
"""Characters of the longest question that is read."""


def translate(request: TranslationRequest) -> Translation:
    """Return the program of a question in the engine's own words; no steps for any other question."""
    return Translation(translated(request.question, request.relations, request.sets))


@lru_cache(maxsize=2048)
def translated(
    question: str, relations: tuple[str, ...], sets: tuple[str, ...]
) -> tuple[TranslationStep, ...]:
    """Return the steps of a question's program."""
    whole = expression_of(question, relations, sets)
    return () if whole is None else flattened(whole)


def expression_of(question: str, relations: Sequence[str], sets: Sequence[str]) -> Expression | None:
    """Return the program of a question as an expression; `None` for a question that is not understood."""
    text = " ".join(question.split()).removesuffix("?").rstrip()
    if len(text) > _LONGEST or len(_LINKS.findall(text)) > _MOST_LINKS:
        return None
    if _START.match(text):
        text = text[0].lower() + text[1:]
    timed = regex(r"in (?P<year>\d{3,4}), (?P<rest>.+)").fullmatch(text)
    if timed is not None:
        text = timed["rest"]
    whole = _QuestionParser(tuple(relations), tuple(sets), text).question(text)
    return whole if whole is None or timed is None else limited_to(whole, timed["year"])


class _QuestionParser(PhraseParser):
    """Parser of questions."""

    def question(self, text: str) -> Expression | None:
        """Parse a question without its question mark."""
        front = regex(r"of (?P<group>the .+?), (?P<rest>\w.+)").fullmatch(text)
        if front is not None and (group := self.group(front["group"])) is not None:
            self.front = group
            text = front["rest"]
        parts = (
            self._difference,
            self._sum,
            self._each,
            self._counted,
            self._yes_no,
            self._asked,
            self._chosen,
            self._which,
        )
        return next((found for part in parts if (found := part(text)) is not None), None)

    def _difference(self, text: str) -> Expression | None:
        between = regex(r"how many years (?:passed|lie|are there|were there) between (?P<both>.+)").fullmatch(
            text
        )
        if between is not None:
            for first, second in splits(between["both"], " and "):
                one = self._dated(first)
                two = None if one is None else self._second_date(first, second, one)
                if one is not None and two is not None:
                    return Expression(Operator.DIFFERENCE, (one, two))
            return None
        if (apart := self._apart(text)) is not None:
            return apart
        for relation, _ in self.known:
            of = rf"what (?:is|was) the difference between the {re.escape(relation)} of (?P<one>.+) and (?:that|the one) of (?P<two>.+)"
            by_both = rf"by how many {ANY_UNIT} (?:do|did) (?P<both>the .+) differ in {re.escape(relation)}"
            by = rf"by how many {ANY_UNIT} (?:do|did) (?P<one>.+) and (?P<two>.+) differ in {re.escape(relation)}"
            if (both := regex(by_both).fullmatch(text)) is not None:
                things = self.several(both["both"], "and")
                if things is not None and len(things) == 2:
                    parts = (Expression(Operator.FOLLOW, (each,), relation) for each in things)
                    return Expression(Operator.DIFFERENCE, tuple(parts))
            for pattern in (of, by):
                if (found := regex(pattern).fullmatch(text)) is not None:
                    one, two = self.follow(found["one"], relation), self.follow(found["two"], relation)
                    if one is not None and two is not None:
                        return Expression(Operator.DIFFERENCE, (one, two))
        return None

    def _apart(self, text: str) -> Expression | None:
        """Parse `how many years apart were Alba and Brenn founded`."""
        for relation, words in self.known:
            if not words.event:
                continue
            done = " ".join(filter(None, (words.verb.infinitive, words.asked)))
            found = regex(rf"how many years apart (?:were|did) (?P<both>.+) {done}").fullmatch(text)
            things = None if found is None else self.several(found["both"], "and")
            if things is not None and len(things) == 2:
                parts = (Expression(Operator.FOLLOW, (each,), relation) for each in things)
                return Expression(Operator.DIFFERENCE, tuple(parts))
        return None

    def _second_date(self, first: str, text: str, one: Expression) -> Expression | None:
        """Parse `that of Brenn`, `the death of its founder` after another event."""
        if text.startswith("that of "):
            return self.follow(text.removeprefix("that of "), one.relation)
        owner = first.partition(" of ")[2]
        return self._dated(_ITS.sub(lambda its: f"the {its[1]} of {owner}", text))

    def _dated(self, text: str) -> Expression | None:
        """Parse `the foundation of Alba`."""
        for relation, words in self.known:
            lead = f"the {words.event} of "
            if words.event and text.startswith(lead):
                return self.follow(text[len(lead) :], relation)
        return None

    def _sum(self, text: str) -> Expression | None:
        for relation, words in self.known:
            total = rf"what (?:is|was) the total {re.escape(relation)} of (?P<all>.+?)(?:, in {ANY_UNIT})?"
            ask = rf"{slot_regex(lowered(words.ask), UNIT)} {words.verb.any_auxiliary} (?P<all>.+) {words.verb.stem} (?:together|in total)"
            for pattern in (total, ask) if words.ask else (total,):
                found = regex(pattern).fullmatch(text)
                things = self.things(found["all"]) if found else None
                if things is None:
                    continue
                if len(things) == 1:
                    return Expression(Operator.SUM, (Expression(Operator.FOLLOW, things, relation),))
                parts = (Expression(Operator.FOLLOW, (each,), relation) for each in things)
                return Expression(Operator.SUM, tuple(parts))
        return None

    def _each(self, text: str) -> Expression | None:
        found = regex(r"what (?:is|was|are) the (?P<relation>.+) of each of (?P<group>.+)").fullmatch(text)
        if found is None or found["relation"] not in self.relations:
            return None
        group = self.group(found["group"])
        if group is None:
            return None
        return Expression(Operator.LIST, (Expression(Operator.FOLLOW, (group,), found["relation"]),))

    def _counted(self, text: str) -> Expression | None:
        found = regex(r"how many of (?P<rest>the .+)").fullmatch(text)
        if found is None:
            return None
        limited = self._of_group(found["rest"])
        if limited is None or limited.operator in {Operator.GREATEST, Operator.LEAST}:
            return None
        return Expression(Operator.COUNT, (limited,))

    def _of_group(self, text: str) -> Expression | None:
        """Parse a closed set with a clause: `the three main islands have fewer than 3,000 inhabitants`."""
        for description in sorted(self.sets, key=len, reverse=True):
            lead = f"the {description} "
            if text.lower().startswith(lead):
                base = Expression(Operator.MEMBERS, (self.sets[description],))
                return self.limited((base,), text[len(lead) :])
        those = regex(r"those of (?P<rest>the .+)").fullmatch(text)
        if those is not None:
            for split in regex(rf" {OF} ").finditer(those["rest"]):
                base = self.group(those["rest"][: split.start()])
                if base is None:
                    continue
                rest = those["rest"][split.end() :]
                for end in reversed(
                    list(regex(r" (?=(?:is|are|was|were|has|have|had|did)\b| )").finditer(rest))
                ):
                    inner = self.limited((base,), rest[: end.start()])
                    outer = self.limited((inner,), rest[end.end() :]) if inner is not None else None
                    if outer is not None:
                        return outer
        return None

    def _chosen(self, text: str) -> Expression | None:
        """Parse `which of the two was founded earlier, A or B`."""
        found = regex(
            r"(?:who|which of the \w+|which(?: [a-z'’\-]+){0,3}?) (?P<clause>(?!of )[^,:]+)[,:] (?P<items>.+)"
        ).fullmatch(text)
        if found is None:
            return None
        items = self.several(found["items"], "or")
        clause = self.clause(found["clause"])
        for split in regex(" ").finditer(found["clause"]) if clause is None else ():
            clause = clause or self.clause(found["clause"][split.end() :])
        if items is None or clause is None or not isinstance(clause.kind, Operator):
            return None
        return Expression(clause.kind, items, clause.relation)

    def _which(self, text: str) -> Expression | None:
        if text.startswith("which of the "):
            whole = self._of_group(text.removeprefix("which of "))
            if whole is None or whole.operator in {Operator.GREATEST, Operator.LEAST}:
                return whole
            verb = text[text.index(" ", 9) :]
            plural = re.search(r" (?:is|are|was|were|has|have|had)\b", verb)
            several = plural is not None and plural[0].strip() in {"are", "were", "have"}
            return Expression(Operator.LIST, (whole,)) if several else whole
        lead = regex(r"(?:(?P<who>who|what|which people)|which (?P<noun>[a-z'’\-]+)) (?P<rest>.+)")
        found = lead.fullmatch(text)
        if found is None:
            return None
        rest = found["rest"]
        for start in (0, *(split.end() for split in regex(" ").finditer(rest))):
            if found["who"] and start:
                break
            noun = " ".join(filter(None, (found["noun"], rest[:start].strip())))
            whole = self.limited((), rest[start:], noun)
            if whole is not None:
                plural = found["who"] == "which people" or rest[start:].startswith(("were ", "are ", "have "))
                return Expression(Operator.LIST, (whole,)) if plural else whole
        return None

    def _asked(self, text: str) -> Expression | None:
        """Parse a question for the value of a relation."""
        for relation, words in self.known:
            if words.asks:
                found = regex(slot_regex(lowered(words.asks), "")).fullmatch(text)
                if found is not None and (whole := self.follow(found["v"], relation)) is not None:
                    return whole
            if words.ask and (whole := self._inverted(text, relation, words)) is not None:
                return whole
        plain = regex(rf"(?:what|who) (?:is|are|was|were) (?P<thing>the .+?)(?:, in {ANY_UNIT})?").fullmatch(
            text
        )
        found = None if plain is None else self.related(plain["thing"])
        return found

    def _inverted(self, text: str, relation: str, words: RelationWords) -> Expression | None:
        ask = slot_regex(lowered(words.ask), UNIT)
        if words.event:
            ask = f"(?:{ask}|when|in what year)"
        rest = " ".join(filter(None, (words.verb.infinitive, words.asked)))
        start = rf"{ask} {words.verb.any_auxiliary} "
        if rest:
            rest = f" {re.escape(rest)}"
            moved = regex(
                rf"{start}(?P<head>the [a-z'’\- ]+?){rest} (?P<clause>(?:{OF}|where|whose) .+)"
            ).fullmatch(text)
            if moved is not None:
                return self.follow(f"{moved['head']} {moved['clause']}", relation)
        if words.counted:
            there = regex(rf"{ask} (?:are|were) there (?:in|on) (?P<e>the .+)").fullmatch(text)
            if there is not None:
                return self.follow(there["e"], relation)
        found = regex(rf"{start}(?P<e>.+){rest}").fullmatch(text)
        if found is None:
            return None
        owner = found["e"]
        if words.part:
            lead = f"the {words.part} of "
            if not owner.startswith(lead):
                return None
            owner = owner[len(lead) :]
        return self.follow(owner, relation)

    def _yes_no(self, text: str) -> Expression | None:
        if not regex(r"(?:is|are|was|were|do|does|did) ").match(text):
            return None
        return self._same(text) or self._ordered(text) or self._stated(text) or self._also(text)

    def _same(self, text: str) -> Expression | None:
        for relation, words in self.known:
            patterns = [rf"(?:do|did) (?P<both>.+) have the same {re.escape(relation)}"]
            if words.ask == "Where" and words.asked:
                patterns.append(rf"(?:were|are) (?P<both>.+) {words.asked} in the same place")
            if words.event:
                rest = " ".join(filter(None, (words.verb.infinitive, words.asked)))
                patterns.append(rf"{words.verb.any_auxiliary} (?P<both>.+) {rest} in the same year")
            for pattern in patterns:
                found = regex(pattern).fullmatch(text)
                for first, second in splits(found["both"], " and ") if found else ():
                    one, two = self.follow(first, relation), self.follow(second, relation)
                    if one is not None and two is not None:
                        return Expression(Operator.EQUAL, (one, two))
        return None

    def _ordered(self, text: str) -> Expression | None:
        for relation, words in self.known:
            for operator, pattern in ((Operator.BEFORE, words.less), (Operator.GREATER, words.more)):
                if not pattern or (operator is Operator.GREATER and words.event):
                    continue
                found = asked_regex(words, pattern).fullmatch(text)
                if found is None:
                    continue
                one = self.follow(found["s"], relation)
                if one is None:
                    continue
                if words.event:
                    two = found["v"] if YEAR.fullmatch(found["v"]) else self._happened(found["v"], relation)
                    if two is not None:
                        return Expression(operator, (one, two))
                elif operator is Operator.GREATER and found["v"][:1].isdigit():
                    unit = words.unit if words.unit != UNIT else ""
                    return Expression(operator, (one, f"{found['v']} {unit}".strip()))
            found = asked_regex(words, words.than).fullmatch(text) if words.than else None
            if found is not None:
                one, two = self.follow(found["s"], relation), self.follow(found["v"], relation)
                if one is not None and two is not None:
                    return Expression(Operator.GREATER, (one, two))
        return None

    def _happened(self, text: str, relation: str) -> Expression | None:
        """Parse `Alba was founded`; without a verb, the same event as before."""
        for other, words in self.known:
            if words.event:
                rest = f" {words.asked}" if words.asked else ""
                found = regex(rf"(?P<e>.+) {words.verb.any_finite}{rest}").fullmatch(text)
                if found is not None and (whole := self.follow(found["e"], other)) is not None:
                    return whole
        return self.follow(text, relation) if relation else None

    def _stated(self, text: str) -> Expression | None:
        """Parse `was Alba founded by Ida Holt`."""
        for relation, words in self.known:
            found = asked_regex(words, words.value).fullmatch(text) if words.value else None
            if found is None or relation == "kind":
                continue
            one = self.follow(found["s"], relation)
            value: Expression | str | None = found["v"]
            if words.event and found["v"].startswith(YEAR_IN):
                value = self._happened(found["v"].removeprefix(YEAR_IN), "")
            elif words.event or words.numeric:
                value = found["v"] if found["v"][:1].isdigit() else None
                if value and words.unit not in ("", UNIT):
                    value = f"{value} {words.unit}"
            else:
                value = self.thing(found["v"])
            if one is not None and value is not None:
                return Expression(Operator.EQUAL, (one, value))
        return None

    def _also(self, text: str) -> Expression | None:
        for split in regex(r" the ").finditer(text):
            name, role = (
                name_in(text[text.index(" ") + 1 : split.start()]),
                self.related(text[split.start() + 1 :]),
            )
            if name is not None and role is not None:
                return Expression(Operator.EQUAL, (role, name))
        found = regex(r"(?:is|was) (?P<one>.+?) also (?P<two>the .+)").fullmatch(text)
        if found is None:
            return None
        one, two = self.thing(found["one"]), self.related(found["two"])
        return None if one is None or two is None else Expression(Operator.EQUAL, (one, two))
