"""Budgets that the processes of a run share."""

import pytest

from agentflow.errors import RunStopped
from agentflow.journal import open_journal
from agentflow.models import ModelSettings, Prices
from agentflow.runs._resources import open_accounts, share_accounts
from agentflow.synthesis import SynthesisConfig
from agentflow.trace import Usage
from tests._postgres import PostgresServer


@pytest.mark.promise("models:budgets:shared")
async def test_the_usage_of_other_processes_counts_towards_the_budgets(
    postgres: PostgresServer,
) -> None:
    url = postgres.new_database()
    models = {"planner": ModelSettings(name="painter", prices=Prices(input=1e6, output=1e6))}
    config = SynthesisConfig(max_total_tokens=100, max_cost=1000.0)
    async with open_journal(url) as one, open_journal(url) as other:
        runs = [await journal.open_run("run", {}) for journal in (one, other)]
        accounts = [await open_accounts(run, config, models) for run in runs]
        for own, tokens in zip(accounts, (60, 39), strict=True):
            own.add("planner", Usage(1, tokens, 0), cost=float(tokens))
        for run, own in zip(runs, accounts, strict=True):
            await share_accounts(run, own, models)
            own.check()
        accounts[1].add("planner", Usage(1, 0, 1), cost=1.0)
        with pytest.raises(RunStopped, match=r"the budget of 100 tokens is used up \(100\)"):
            accounts[1].check()
        accounts[0].check()
        await share_accounts(runs[1], accounts[1], models)
        await share_accounts(runs[0], accounts[0], models)
        with pytest.raises(RunStopped, match=r"the budget of 100 tokens is used up \(100\)"):
            accounts[0].check()
