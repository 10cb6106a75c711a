"""Names of spans, attributes, events and metrics: OpenTelemetry's GenAI conventions at one version, and ours beside them.

Nothing else in this package writes such a name. To move to another version of the conventions, change this module and the
tables in docs/tracing.md and in the test of that version.
"""

from typing import Final

VERSION: Final = "0.1.0"
"""Version of the GenAI conventions (on version 1.45.0 of the general ones)."""
SCOPE: Final = "agentflow"
"""Instrumentation scope of all spans and metrics."""

# Operations, the first word of a span's name.
INVOKE_WORKFLOW: Final = "invoke_workflow"
INVOKE_AGENT: Final = "invoke_agent"
PLAN: Final = "plan"
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"
TRAIN_STEP: Final = "train_step"
"""Optimizer step; the conventions have no such operation."""

# Attributes of the conventions.
OPERATION_NAME: Final = "gen_ai.operation.name"
PROVIDER_NAME: Final = "gen_ai.provider.name"
AGENT_NAME: Final = "gen_ai.agent.name"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
OUTPUT_TYPE: Final = "gen_ai.output.type"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
REQUEST_TOP_P: Final = "gen_ai.request.top_p"
REQUEST_SEED: Final = "gen_ai.request.seed"
REQUEST_STOP_SEQUENCES: Final = "gen_ai.request.stop_sequences"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
ERROR_TYPE: Final = "error.type"

# Attributes with content, which is written only where it is enabled.
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
TOOL_CALL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_CALL_RESULT: Final = "gen_ai.tool.call.result"
CAPTURE_CONTENT: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""Variable that enables content."""

# The event of a score.
EVALUATION_RESULT: Final = "gen_ai.evaluation.result"
EVALUATION_NAME: Final = "gen_ai.evaluation.name"
EVALUATION_SCORE: Final = "gen_ai.evaluation.score.value"
EVALUATION_LABEL: Final = "gen_ai.evaluation.score.label"

# Attributes of ours.
RUN: Final = "agentflow.run"
SEED: Final = "agentflow.seed"
NODE: Final = "agentflow.node"
ROLE: Final = "agentflow.role"
EFFECT: Final = "agentflow.effect"
ISOLATION: Final = "agentflow.isolation"
ATTEMPTS: Final = "agentflow.attempts"
STEP: Final = "agentflow.step"
REWARD: Final = "agentflow.reward"
QUEUE: Final = "agentflow.queue"

# Metrics: name, unit, description, boundaries of the buckets.
SECONDS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
TOKENS: Final = tuple(4**power for power in range(14))
INFERENCE_DURATION: Final = "gen_ai.client.inference.duration"
INVOKE_AGENT_DURATION: Final = "gen_ai.invoke_agent.duration"
EXECUTE_TOOL_DURATION: Final = "gen_ai.execute_tool.duration"
INPUT_TOKENS: Final = "gen_ai.client.inference.operation.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.client.inference.operation.output_tokens"
QUEUE_LENGTH: Final = "agentflow.queue.length"

DURATIONS: Final = {
    CHAT: INFERENCE_DURATION,
    EXECUTE_TOOL: EXECUTE_TOOL_DURATION,
    INVOKE_AGENT: INVOKE_AGENT_DURATION,
    INVOKE_WORKFLOW: INVOKE_AGENT_DURATION,
}
"""Metric of an operation's duration."""
TOKENS_OF: Final = {INPUT_TOKENS: USAGE_INPUT_TOKENS, OUTPUT_TOKENS: USAGE_OUTPUT_TOKENS}
"""Attribute of a model call that each metric of tokens sums up."""
DIMENSIONS: Final = {
    INFERENCE_DURATION: (
        OPERATION_NAME, PROVIDER_NAME, REQUEST_MODEL, RESPONSE_MODEL, SERVER_ADDRESS, SERVER_PORT, ERROR_TYPE,
    ),
    INVOKE_AGENT_DURATION: (OPERATION_NAME, AGENT_NAME, ERROR_TYPE),
    EXECUTE_TOOL_DURATION: (OPERATION_NAME, TOOL_NAME, TOOL_TYPE, ERROR_TYPE),
}  # fmt: skip
"""Attributes of a span that its duration has, too; its tokens have them without the error."""
