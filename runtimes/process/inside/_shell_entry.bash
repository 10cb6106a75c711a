\builtin eval "${__agentflow_trace:+set -$__agentflow_trace;}$__agentflow_command"
