"""Fake endpoint of language models: OpenAI's API over real HTTP, in a process of its own.

`python -m agentflow.testing.endpoint --port 0 --delay-ms 50` prints its address as the first line and serves until it
is stopped. Its answers are a pure function of the request, in the role that the schema's name selects. Delays and
faults are configurable, and it counts requests (`GET /stats`). See docs/models.md.
"""

from agentflow.testing.endpoint._server import EndpointFault, FaultPlan
from agentflow.testing.endpoint._spawn import fake_endpoint

__all__ = ["EndpointFault", "FaultPlan", "fake_endpoint"]
