"""The parser of every command line: a wrong argument gives one line."""

import argparse
import re
from typing import Final, NoReturn

from agentflow._secrets import mask_text
from agentflow._terminal import printable


class CommandParser(argparse.ArgumentParser):
    """Parser whose errors are one line each, as are those of its subcommands.

    Example::

        CommandParser(prog="tool").parse_args(["--speed"])  # tool: error: unrecognized arguments: --speed; see tool --help
    """

    def error(self, message: str) -> NoReturn:
        """Print the line on stderr, without the values of options, and exit with status 2."""
        line = printable(mask_text(_without_values(" ".join(message.split()))))
        self.exit(2, f"{self.prog}: error: {line}; see {self.prog} --help\n")


_UNKNOWN: Final = "unrecognized arguments: "


def _without_values(message: str) -> str:
    """Leave out the values of unknown options: a misspelt `--token` has a secret for a value."""
    if not message.startswith(_UNKNOWN):
        return message
    words = message.removeprefix(_UNKNOWN).split(" ")
    shown = [
        "…"
        if before.startswith("-") and "=" not in before and not word.startswith("-")
        else _VALUE.sub("=…", word)
        for before, word in zip(["", *words], words, strict=False)
    ]
    return _UNKNOWN + " ".join(shown)


_VALUE: Final = re.compile("=.+")
