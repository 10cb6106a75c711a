"""The models of a run, and what they may consume."""

from collections.abc import Mapping
from functools import partial

from agentflow.actors import Supervisor
from agentflow.journal import Run
from agentflow.models import Accounts, Endpoints, ModelSettings, OpenModel, Prices, make_model
from agentflow.runs._config import RunConfig
from agentflow.runs._supervised_resources import hold

__all__ = ["open_accounts", "open_models", "prices_of"]


def prices_of(models: Mapping[str, ModelSettings]) -> dict[str, Prices]:
    """What the models cost, of roles whose model has prices."""
    return {role: settings.prices for role, settings in models.items() if settings.prices is not None}


async def open_accounts(run: Run, config: RunConfig, models: Mapping[str, ModelSettings]) -> Accounts:
    """What was consumed by now, and how much more may be."""
    used = await run.load_usage()
    prices = prices_of(models)
    return Accounts(
        max_tokens=config.max_total_tokens,
        max_cost=config.max_cost,
        max_seconds=config.max_seconds,
        already=used,
        already_cost=sum(price.cost(used[role]) for role, price in prices.items() if role in used),
    )


async def open_models(
    house: Supervisor, models: Mapping[str, ModelSettings], accounts: Accounts
) -> dict[str, OpenModel]:
    """An engine per role, held by the house; roles with the same settings share one."""
    endpoints = Endpoints()
    made: list[tuple[ModelSettings, OpenModel]] = []
    opened: dict[str, OpenModel] = {}
    for role, settings in models.items():
        model = next((model for known, model in made if known == settings), None)
        if model is None:
            opens = partial(make_model, settings, accounts, endpoints=endpoints)
            model = await hold(house, f"model of the {role}", opens)
            made.append((settings, model))
        opened[role] = model
    return opened
