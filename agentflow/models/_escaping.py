"""Messages and tools in which no text is a special token of a chat template.

Everything in a message may be data: results of tools, documents, questions, and answers that repeat them. All of it is
escaped where a call leaves for its endpoint, so no caller can forget it. See docs/security.md.
"""

from msgspec import structs

from agentflow._typeguards import is_object
from agentflow.models._protocol import ImagePart, Message, Part, TextPart, ToolCall, ToolReply, ToolSpec
from agentflow.text import escape_all_special_tokens, escape_special_tokens


def escaped_message(message: Message) -> Message:
    """Return a message whose texts, calls and results contain no special tokens. See docs/models.md."""
    parts = tuple(map(_escaped, message.parts))
    return message if parts == message.parts else structs.replace(message, parts=parts)


def escaped_tool(tool: ToolSpec) -> ToolSpec:
    """Return a tool whose description and schema contain no special tokens. See docs/models.md."""
    schema = escape_all_special_tokens(tool.schema)
    description = escape_special_tokens(tool.description)
    return structs.replace(tool, description=description, schema=schema if is_object(schema) else tool.schema)


def _escaped(part: Part) -> Part:
    match part:
        case TextPart():
            return _escaped_text(part)
        case ToolReply(parts=parts):
            kept = tuple(item if isinstance(item, ImagePart) else _escaped_text(item) for item in parts)
            return structs.replace(part, parts=kept)
        case ToolCall(arguments=arguments, raw_arguments=raw):
            escaped_arguments = escape_all_special_tokens(arguments)
            return structs.replace(
                part,
                arguments=escaped_arguments if is_object(escaped_arguments) else None,
                raw_arguments=escape_special_tokens(raw),
            )
        case ImagePart():
            return part


def _escaped_text(part: TextPart) -> TextPart:
    text = escape_special_tokens(part.text)
    return part if text == part.text else TextPart(text)
