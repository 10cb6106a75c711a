"""Episodes as chat messages for supervised fine-tuning."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

ChatMessage: TypeAlias = dict[str, Any]
"""A message in the format of chat templates."""
_EMPTY: Final = "(empty)"


class ChatBuilder:
    """Chat messages of an episode: the question, each call with its result, the answer.

    Messages that no model should learn to write have `"trainable": False`.

    Example::

        chat = ChatBuilder("When was it built?")
        chat.call("rag_search", {"query": "light"}, "Look it up.", "It was built in 1834.")
        chat.answer("1834")
        messages = chat.messages
    """

    def __init__(self, question: str) -> None:
        """Begin with a question."""
        self.messages: list[ChatMessage] = [{"role": "user", "content": question}]
        """Messages so far."""

    def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        intent: str,
        result: str,
        *,
        images: Sequence[str] = (),
        failed: bool = False,
    ) -> None:
        """Add a call and its result.

        :param arguments: arguments that the model wrote, without those that the task fixes.
        :param result: text of the result; empty or `(empty)` if there is none.
        :param images: paths of the images in the result; with images it is a list of parts.
        :param failed: the call failed, or gave nothing new: it is context only.
        """
        key = f"call_{len(self.messages) // 2 + 1}"
        function = {"name": tool, "arguments": dict(arguments)}
        self._say(intent, not failed, tool_calls=[{"id": key, "type": "function", "function": function}])
        text = "" if result.strip() == _EMPTY else result
        content: object = text or _EMPTY
        if images:
            texts = [{"type": "text", "text": text}] if text else []
            content = [*texts, *({"type": "image", "path": path} for path in images)]
        self.messages.append({"role": "tool", "tool_call_id": key, "name": tool, "content": content})

    def answer(self, text: str, *, trainable: bool = True) -> None:
        """Add the answer.

        :param trainable: the messages show what it rests on.
        """
        self._say(text, trainable)

    def _say(self, text: str, trainable: bool, **more: object) -> None:
        mask = {} if trainable else {"trainable": False}
        self.messages.append({"role": "assistant", "content": text, **more, **mask})
