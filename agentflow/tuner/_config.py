"""Settings of a tuning run: those of a training, and the agent with its rewards and its gateway."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from pydantic import Field

from agentflow.gateway import AgentSettings, GatewaySettings, UpstreamSettings
from agentflow.learner import FROZEN, JUDGE, POLICY, TrainConfig
from agentflow.models import OFFLINE, ModelSettings
from agentflow.rollouts import BranchingSettings
from agentflow.runs import RoleModel
from agentflow.settings import load_settings
from agentflow.tuner._workflow import ONLY_AGENT

TEAM: Final = "team"
"""Workflow of our own team, instead of a function."""
AGENTJET: Final = "ajet"
"""Root of the settings in AgentJet's files."""
_AGENT: Final = "agent "
_ROLE: Final = "role "
_SET_BY_RUN: Final = ("upstream", "agents", "folder", "temperature", "group_size")


class AgentRules(RoleModel):
    """One agent of an episode, and its model if it is not trained."""

    trained: bool = False
    """Train it; all trained agents share the policy."""

    def model_settings(self, name: str) -> ModelSettings:
        """Return the model of an agent that is not trained.

        :param name: name of the agent.
        """
        fields = {field: getattr(self, field) for field in self.model_fields_set - {"trained", "model_name"}}
        settings = {field: value for field, value in fields.items() if value is not None}
        return ModelSettings.model_validate({"name": self.model_name or name, **settings})


class TuneConfig(TrainConfig):
    """Settings of a tuning run. Made directly, they ignore files and the environment; `load_tune_config` reads them."""

    aliases: ClassVar[dict[str, str]] = {"judge": "reward"}

    solve: str = ""
    """The agent: `module:function` or `file.py:function`, or `team` for our own team."""
    reward: str | dict[str, Any] | None = None
    """Metric by name, `module:function`, a section of docs/judges.md, or one of them for each `source` of tasks; `None`:
    `tasks.metric`."""
    agents: dict[str, AgentRules] = Field(default_factory=dict[str, AgentRules])
    """Agents by name; empty: one agent, which is trained."""
    gateway: GatewaySettings = GatewaySettings()
    """Address, tokens and limits of the gateway."""
    agentjet: dict[str, Any] | None = None
    """Content of AgentJet's file that these settings come from, for its workflows: docs/migrating-tuner.md."""

    @classmethod
    def values_of_file(
        cls, values: dict[str, object], file: str, above: Mapping[str, object]
    ) -> dict[str, object]:
        """Return the values of a file; those of AgentJet's are converted. See docs/migrating-tuner.md."""
        if AGENTJET not in values:
            return values
        from agentflow.tuner.agentjet import convert_settings  # only for files of AgentJet

        return convert_settings(values, file, above)

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.tasks.evidence is not None and self.solve != TEAM:
            yield "tasks.evidence: the documents that this agent's tools show are unknown; leave it out, or set solve=team"
        for name in _SET_BY_RUN:
            if name in self.gateway.model_fields_set:
                yield f"gateway.{name}: the run sets it; leave it out"
        if self.solve == TEAM and self.agents:
            yield "agents: the agents of the team are episodes.trained; leave them out"
        if self.agents and not any(agent.trained for agent in self.agents.values()):
            yield "agents: none is trained; set trained: true for at least one"
        for name, agent in self.agents.items():
            if agent.trained and (agent.model_name not in (None, POLICY) or agent.base_url):
                yield f"agents.{name}: it is trained, so its model is the policy; leave out its name"
            if not agent.trained and not agent.model_name:
                yield f"agents.{name}: set model_name, such as {FROZEN}, or trained: true"

    def _branching_problems(self, branching: BranchingSettings) -> Iterator[str]:
        yield from super()._branching_problems(branching)
        size = self.schedule.episodes_per_task
        if self.solve == TEAM:
            yield "branching: episodes of solve=team do not branch behind the gateway; leave it out, or use agentflow train"
        if self.agents:
            yield "branching: episodes of several agents do not branch; leave out branching or agents"
        if branching.width == 1:
            yield "branching.width: with 1 nothing branches; set 2 or more, or leave out branching"
        if branching.at != "every":
            yield "branching.at: behind the gateway the first decisions branch; leave it out"
        if branching.roles:
            yield "branching.roles: behind the gateway each call is a decision; leave it out"
        if "leaves" in branching.model_fields_set and branching.leaves != size:
            yield f"branching.leaves: a group has schedule.episodes_per_task episodes, {size}; set that instead"

    @property
    def branch_width(self) -> int:
        """Number of episodes of a group that part at a decision; 1: they are independent."""
        return 1 if self.branching is None or self.backbone == "debug" else self.branching.width

    @property
    def _own_agents(self) -> tuple[str, ...]:
        """Agents of a run whose settings name none."""
        return self.episodes.trained_roles if self.solve == TEAM else (ONLY_AGENT,)

    def wanted_models(self) -> dict[str, ModelSettings]:
        """Return the policy, the judge's model if there is one, and the models of agents that are not trained."""
        others = {
            _AGENT + name: agent.model_settings(name)
            for name, agent in self.agents.items()
            if not agent.trained
        }
        roles = self.episodes.models
        team = {_ROLE + role: model for role, model in roles.items()} if self.solve == TEAM else {}
        judge = {} if roles[JUDGE].name == OFFLINE else {JUDGE: roles[JUDGE]}
        return {**others, **team, **judge, POLICY: ModelSettings(name=POLICY)}

    def team_models(self, models: Mapping[str, ModelSettings]) -> dict[str, ModelSettings]:
        """Return the models of the roles of our own team.

        :param models: models of `wanted_models`, with their addresses.
        """
        return {role: models[_ROLE + role] for role in self.episodes.models}

    def gateway_settings(
        self, models: Mapping[str, ModelSettings], *, tokens: bool = True
    ) -> GatewaySettings:
        """Return the settings of the run's gateway.

        :param models: models of `wanted_models`, with their addresses.
        :param tokens: the policy's engine reports tokens; otherwise no agent is trained.
        """
        policy, rules = models[POLICY], self.episodes
        trained = AgentSettings(trained=True) if tokens else AgentSettings(model=policy)
        agents = {
            name: trained if agent.trained else AgentSettings(model=models[_AGENT + name])
            for name, agent in self.agents.items()
        } or dict.fromkeys(self._own_agents, trained)
        limits = self.gateway.limits
        changes: dict[str, object] = {}
        if "attempts" not in limits.model_fields_set:
            changes["attempts"] = 1 + rules.max_retries
        if "idle_seconds" not in limits.model_fields_set:
            # A workflow may compute for long between its calls.
            changes["idle_seconds"] = max(limits.idle_seconds, rules.episode_seconds + 60)
        if "total_seconds" not in limits.model_fields_set:
            changes["total_seconds"] = max(limits.total_seconds, rules.episode_seconds + 60)
        upstream = UpstreamSettings(base_url=policy.base_url, api_key=policy.api_key, model=policy.name)
        return self.gateway.model_copy(
            update={
                "folder": self.output.absolute() / "gateway" if self.backbone != "debug" else None,
                "upstream": upstream,
                "agents": agents,
                "temperature": rules.temperature_in_training,
                "group_size": self.schedule.episodes_per_task,
                "limits": limits.model_copy(update=changes),
            }
        )


def load_tune_config(
    config_path: Path | str | None = None,
    overrides: Iterable[str] = (),
    arguments: Mapping[str, object] | None = None,
) -> TuneConfig:
    """Load settings from a file, then `.env`, then the environment, then `key=value` overrides; the last one wins.

    :param arguments: settings given by a program; they override all others.
    :raises ConfigurationError: if a setting can't be used; one line.

    Example::

        config = load_tune_config(overrides=["solve=team", "schedule.steps=1"])
        assert config.solve == "team"
    """
    return load_settings(TuneConfig, config_path, overrides, arguments=arguments)
