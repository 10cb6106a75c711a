eval "$__agentflow_command"
