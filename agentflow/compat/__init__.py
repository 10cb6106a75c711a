"""Imports printed in the documentation of other systems, as other names of this project's packages.

::

    import agentflow.compat
    from synthesis import synthesize

Importing it adds a finder to `sys.meta_path`; nothing is loaded before a printed name is imported. A module of your
own with a printed name takes precedence. Every printed name and ours: docs/migrating-data-synthesis.md,
docs/migrating-flow-grpo.md and docs/migrating-tuner.md.
"""

from agentflow.compat._printed_names import PRINTED_MODULES, ajet, install_finder

__all__ = ["PRINTED_MODULES", "ajet"]

install_finder()
