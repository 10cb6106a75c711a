"""Settings: one typed object from a file, `.env`, environment variables and `key=value` overrides, in that order.

A program declares its settings as a subclass of `Settings` and loads them with `load_settings`. Any problem is a
`ConfigurationError` of one line: source, key, problem and remedy. See docs/settings.md.
"""

from agentflow.settings._load import (
    load_settings,
    merge,
    read_environment,
    read_file,
    read_run_settings,
    report_read_errors,
)
from agentflow.settings._model import (
    EndpointUrl,
    RenamedSettingWarning,
    Section,
    Settings,
    SettingsByName,
    explain_line,
    nearest,
    unknown_key,
)
from agentflow.settings._references import import_named, import_object
from agentflow.settings._yaml import parse_json, parse_yaml

__all__ = [
    "EndpointUrl",
    "RenamedSettingWarning",
    "Section",
    "Settings",
    "SettingsByName",
    "explain_line",
    "import_named",
    "import_object",
    "load_settings",
    "merge",
    "nearest",
    "parse_json",
    "parse_yaml",
    "read_environment",
    "read_file",
    "read_run_settings",
    "report_read_errors",
    "unknown_key",
]
