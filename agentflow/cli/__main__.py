"""`python -m agentflow.cli`, if the `agentflow` command is not on the path."""

import sys

from agentflow.cli import main

sys.exit(main())
