# pyright: basic, reportMissingImports=false
"""Server of the tools of a session, which verifiers starts."""

from agentflow_tasks import AgentFlowTools

AgentFlowTools.run()
