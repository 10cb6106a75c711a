"""Answers of the fake model: a pure function of the prompt, in the role that the schema's name selects.

Its embeddings need no weights: texts that share words are close.
"""

import base64
import math
import re
import struct
from hashlib import blake2b
from typing import Any

import msgspec

from agentflow.testing.endpoint import _documents
from agentflow.testing.endpoint._leads import NEED_LEADS, CallLeads, legal_actions
from agentflow.testing.endpoint._prompt import Prompt
from agentflow.testing.endpoint._tables import answer_about_tables

EMBEDDING_SIZE = 128
"""Dimension of an embedding."""

_ANY_WORD = re.compile(r"\w+")
_IDENTIFIER = re.compile(r"^(?:\[\d+\] )?\S.* \(([\w./:-]+)\)$", re.MULTILINE)
_NOTED = re.compile(r"echo '([^'\n]*)' >> notes\.txt")
_REGION = 100


def play(prompt: Prompt) -> str:
    """Return the text of an answer."""
    match prompt.name:
        case "plan":
            answer: object = _plan(prompt)
        case "judgement":
            answer = {"verdict": "new", "reason": ""}
        case "answer":
            answer = {"answer": "unknown"}
        case "questionproposal":
            answer = _documents.propose(prompt)
        case "repaireddrafts":
            answer = {"drafts": []}
        case "hiddenanswer":
            answer = _documents.read_hidden(prompt)
        case "readings":
            answer = _documents.read_all(prompt)
        case "otheranswers":
            answer = _documents.find_others(prompt)
        case "recalled":
            answer = {"answer": "", "is_certain": False}
        case "taskinstruction" if "<result>\n- " in prompt.text:
            answer = _instruction(prompt)
        case "proposedsolutions" | "taskinstruction" | "independentsolution":
            answer = answer_about_tables(prompt)
        case "":
            return "unknown"
        case _:
            answer = _minimal(prompt.schema, _Dice(prompt.hash, ""))
    return msgspec.json.encode(answer).decode()


def use_tool(prompt: Prompt) -> tuple[str, str]:
    """Return the tool to call next, and its arguments as JSON."""
    tool = prompt.tools[prompt.hash % len(prompt.tools)]
    dice = _Dice(prompt.hash, prompt.newest())
    arguments = _arguments(tool.name, tool.parameters, dice, prompt.text)
    return tool.name, msgspec.json.encode(arguments).decode()


class _Dice:
    """Deterministic random numbers, and words picked by them."""

    def __init__(self, start: int, text: str) -> None:
        self._start = start
        self._rolls = 0
        self._text = text

    def roll(self, sides: int) -> int:
        """Return a number below `sides`."""
        self._rolls += 1
        seed = f"{self._start} {self._rolls}".encode()
        return int.from_bytes(blake2b(seed, digest_size=6).digest(), "big") % sides

    def words(self, count: int) -> list[str]:
        """Return words from all over the text."""
        chosen_words: list[str] = []
        for _ in range(count * 4):
            begin = self.roll(max(1, len(self._text) - _REGION))
            # In a part of a text the outer ones may be cut, and words with other characters make poor queries.
            shown = self._text[begin : begin + _REGION].split()
            near = [word.strip(".,") for word in (shown if len(self._text) < _REGION else shown[1:-1])]
            plain = [word for word in near if len(word) > 3 and word.isalpha()]
            word = plain[self.roll(len(plain))] if plain else f"word{self.roll(1000)}"
            if word not in chosen_words:
                chosen_words.append(word)
            if len(chosen_words) == count:
                break
        return chosen_words


def _plan(prompt: Prompt) -> dict[str, object]:
    proposals = prompt.schema["properties"]["proposals"]
    items: dict[str, Any] = proposals["items"]
    tools = [_tool(option) for option in items.get("anyOf", [items])]
    text = prompt.newest()
    first = prompt.hash % len(tools)
    # A world is acted in; its episode begins once.
    if acting := [tool for tool in tools if tool[0] == "world_act" and legal_actions(text)]:
        tools = acting
    elif beginning := [tool for tool in tools if tool[0] == "world_reset"]:
        tools = beginning
    leads = CallLeads(prompt, [tool for tool, _ in tools])
    ways = {tool: list(leads.of(tool)) for tool, _ in tools}
    made: list[dict[str, object]] = []
    for number in range(proposals["minItems"]):
        turned = [tools[(first + number + offset) % len(tools)] for offset in range(len(tools))]
        dice = _Dice(prompt.hash + number, text)
        tool, schema = next((candidate for candidate in turned if ways[candidate[0]]), turned[0])
        if ways[tool]:
            arguments = {**_unused(schema), **ways[tool].pop(0)}
        else:
            tool, schema = next(
                (candidate for candidate in turned if candidate[0] not in NEED_LEADS), turned[0]
            )
            arguments = _arguments(tool, schema, dice, text)
        if tool == "rag_search":
            # A number of its own keeps it from being a near-duplicate of another search.
            arguments["query"] = f"{arguments['query']} {dice.roll(10_000)}"
        made.append({"intent": f"Look further, way {number + 1}.", "tool": tool, "arguments": arguments})
    return {"proposals": made}


def _instruction(prompt: Prompt) -> dict[str, object]:
    """Return an instruction for a task of state: the lines that are noted, or else the conditions."""
    result = prompt.text.rpartition("<result>")[2].partition("</result>")[0]
    conditions = [line.removeprefix("- ") for line in result.splitlines() if line.startswith("- ")]
    noted = _NOTED.findall(prompt.text.rpartition("<solution>")[2].partition("</solution>")[0])
    if noted:
        lines = ", ".join(f"`{line}`" for line in noted)
        return {"instruction": f"Append to notes.txt, in this order, the lines {lines}.", "ordered": False}
    return {"instruction": f"Reach this state: {'; '.join(conditions)}", "ordered": False}


def _tool(option: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    fields = option["properties"]
    name = fields["tool"].get("const") or fields["tool"]["enum"][0]
    return name, fields.get("arguments", {})


def _unused(schema: dict[str, Any]) -> dict[str, object]:
    """Return null for the fields that strict mode requires although they are optional."""
    return {name: None for name in schema.get("required", ())}  # noqa: C420 - typed


def _arguments(tool: str, schema: dict[str, Any], dice: _Dice, text: str) -> dict[str, object]:
    unused = _unused(schema)
    match tool:
        case "rag_search":
            return {**unused, "query": " ".join(dice.words(3))}
        case "rag_get" if identifiers := _IDENTIFIER.findall(text):
            return {**unused, "id": identifiers[dice.roll(len(identifiers))]}
        case "bash_run":
            line = " ".join([*dice.words(4), str(dice.roll(10_000))])
            command = f"echo '{line}' >> notes.txt; wc -l < notes.txt; tail -n 3 notes.txt"
            return {**unused, "command": command}
        case "code_run":
            items = [*dice.words(4), dice.roll(10_000)]
            begin = "try:\n    items\nexcept NameError:\n    items = []\n"
            return {**unused, "code": f"{begin}items.append({items!r})\nprint(len(items), items[-3:])"}
        case "world_reset":
            return unused
        case "world_act" if actions := legal_actions(text):
            # It tends to take what it can: actions on things come last in the list.
            return {**unused, "action": actions[-1 - dice.roll(min(4, len(actions)))]}
        case _:
            return _minimal(schema, dice)


def _minimal(schema: dict[str, Any], dice: _Dice) -> Any:  # noqa: ANN401 - of the type in the schema
    """Return the smallest value that a schema allows."""
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("enum", "anyOf", "oneOf"):
        if key in schema:
            if {"type": "null"} in schema[key]:
                return None
            option = schema[key][dice.roll(len(schema[key]))]
            return option if key == "enum" else _minimal(option, dice)
    kinds: list[str] | str = schema.get("type", "object")
    match kinds if isinstance(kinds, str) else kinds[0]:
        case "string":
            return " ".join(dice.words(2))
        case "integer" | "number":
            return schema.get("minimum", 0) + dice.roll(10)
        case "boolean":
            return True
        case "null":
            return None
        case "array":
            return [_minimal(schema.get("items", {}), dice) for _ in range(schema.get("minItems", 0))]
        case _:
            fields = schema.get("properties", {})
            return {name: _minimal(fields[name], dice) for name in schema.get("required", ())}


def embed(text: str, *, as_base64: bool = False) -> list[float] | str:
    """Return the unit-length embedding of a text: each word is hashed to a dimension and a sign."""
    vector = [0.0] * EMBEDDING_SIZE
    for word in _ANY_WORD.findall(text.casefold()):
        dice = blake2b(word.encode(), digest_size=3).digest()
        vector[int.from_bytes(dice[:2], "big") % EMBEDDING_SIZE] += 1.0 if dice[2] % 2 else -1.0
    length = math.sqrt(sum(number * number for number in vector)) or 1.0
    vector = [number / length for number in vector]
    if as_base64:
        return base64.b64encode(struct.pack(f"<{EMBEDDING_SIZE}f", *vector)).decode()
    return vector
