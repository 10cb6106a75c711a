"""JavaScript that is run in pages."""

__all__ = ["MATCHING", "call_of"]

# A function given as text is called; anything else is the value itself. `undefined` is `null` in JSON.
_CALL = """async %(argument)s => {
  const value = (
%(source)s
);
  const result = typeof value === 'function' ? await value(%(passed)s) : await value;
  const text = JSON.stringify(result, null, 1) ?? 'null';
  if (text.length > %(most)d)
    throw new RangeError(`the value has ${text.length} characters, more than %(most)d`);
  return text;
}"""

# Expressions run in the page, where one that takes for ever is stopped like any other script.
MATCHING = """([lines, source, flags]) => {
  const expression = new RegExp(source, flags);
  const matching = [];
  lines.forEach((line, index) => {
    expression.lastIndex = 0;
    if (expression.test(line))
      matching.push(index);
  });
  return matching;
}"""


def call_of(source: str, most: int, *, on_element: bool = False) -> str:
    """A function that calls the one whose text this is, on an element or alone, and returns its result as JSON of so many characters."""
    words = ("element", "element") if on_element else ("()", "")
    return _CALL % {"source": source, "argument": words[0], "passed": words[1], "most": most}
