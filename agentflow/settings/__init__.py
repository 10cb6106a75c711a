"""Settings: one typed object from a file, `.env`, the environment and `key=value` words, in that order.

A program describes its settings as a subclass of `Settings` and gets them with `load_settings`. Everything that
can't be used is one `ConfigurationError` of one line: where it stands, what is wrong, how to mend it.
"""

from agentflow.settings._file import read_file
from agentflow.settings._load import load_settings, surroundings
from agentflow.settings._model import Section, Settings

__all__ = ["Section", "Settings", "load_settings", "read_file", "surroundings"]
