"""`python -m agentflow.cli`, where the `agentflow` command is not on the path."""

import sys

from agentflow.cli import main

sys.exit(main())
