"""`python -m agentflow.demo`."""

import sys

from agentflow.demo import main

sys.exit(main())
