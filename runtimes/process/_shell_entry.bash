__agentflow_running=1; eval "$__agentflow_command"
