"""Names of models as documents and other programs write them, and the built-in prices by name."""

import re
import tomllib
from datetime import date
from functools import cache
from pathlib import Path
from typing import Final

SERVER_PREFIXES: Final = ("azure-", "dashscope-", "litellm-", "ollama-", "together-", "vllm-")
"""Documented prefixes that name a server and are not part of the model's own name."""
_FAMILIES: Final = {"claude-": "anthropic", "deepseek-": "deepseek", "gemini-": "gemini", "grok-": "xai"}
"""Providers of models that only they have, by the beginning of their names."""
_DEFAULT_MODELS: Final = {
    "dashscope": "dashscope/qwen2.5-7b-instruct",
    "deepseek": "deepseek/deepseek-chat",
    "gemini": "gemini/gemini-2.5-flash",
    "together": "together/Qwen/Qwen2.5-7B-Instruct-Turbo",
}
"""Models of documented names that are a provider alone."""
_PRICES: Final = Path(__file__).parent / "prices.toml"
_DATE: Final = re.compile(r"-(?:\d{4}-\d{2}-\d{2}|\d{8})$")


def provider_name(name: str) -> str:
    """Return a name as `provider/model` if its documented beginning names a provider, else unchanged."""
    if name in _DEFAULT_MODELS:
        return _DEFAULT_MODELS[name]
    for prefix in SERVER_PREFIXES:
        if name.startswith(prefix) and name != prefix:
            return f"{prefix[:-1]}/{name.removeprefix(prefix)}"
    family = next((owner for prefix, owner in _FAMILIES.items() if name.startswith(prefix)), None)
    return name if family is None or "/" in name else f"{family}/{name}"


def list_price(name: str) -> tuple[float, float] | None:
    """Return the built-in prices of a million prompt and completion tokens; `None` if they are unknown."""
    full = provider_name(name)
    provider, slash, model = full.partition("/")
    if not slash:
        provider, model = "openai", full
    prices = _list_prices().get(provider, {})
    return prices.get(model) or prices.get(_DATE.sub("", model))


def cheapest_model(provider: str) -> str:
    """Return the model of a provider with the lowest built-in prices; empty if none is known. See docs/models.md."""
    prices = _list_prices().get(provider, {})
    return min(prices, key=lambda model: sum(prices[model]), default="")


def price_date() -> date:
    """Return the date of the built-in prices."""
    return _price_list()[0]


def _list_prices() -> dict[str, dict[str, tuple[float, float]]]:
    return _price_list()[1]


@cache
def _price_list() -> tuple[date, dict[str, dict[str, tuple[float, float]]]]:
    content = tomllib.loads(_PRICES.read_text(encoding="utf-8"))
    return content["date"], {
        provider: {model: (float(prompt), float(completion)) for model, (prompt, completion) in table.items()}
        for provider, table in content["models"].items()
    }
