"""The settings of a synthesis: every field is taken, documented files load, and what can't be used is one line."""

import json
from pathlib import Path

import pytest
import yaml
from pydantic import SecretStr

from agentflow.engine import Unforkable
from agentflow.errors import ConfigurationError
from agentflow.models import Accounts, make_model
from agentflow.runs import RoleModel, render_config
from agentflow.sandbox import Sandbox
from agentflow.sandbox._tool_host import canonical_backend
from agentflow.synthesis import SynthesisConfig, load_config
from agentflow.trace import Example
from mcp_servers import load_backend

ROOT = Path(__file__).parents[3]
DOCUMENTED = Path(__file__).parent / "documented"

DEFAULTS: dict[str, object] = {
    "seeds_file": None, "output_dir": None, "available_tools": [], "qa_examples": [], "sampling_tips": "",
    "synthesis_tips": "", "seed_description": "", "model_name": "gpt-4.1-2025-04-14", "api_key": "",
    "base_url": "", "max_depth": 5, "branching_factor": 2, "depth_threshold": 3, "min_depth": 2,
    "max_selected_traj": 3, "path_similarity_threshold": 0.7, "number_of_seed": None, "resource_types": [],
    "resource_init_configs": {}, "sandbox_auto_start": True, "sandbox_config_path": None, "sandbox_timeout": 120,
}  # fmt: skip
"""The documented fields with their documented defaults."""

OTHERWISE: dict[str, object] = {
    "seeds_file": "mine.jsonl", "output_dir": "mine", "imports": ["json"], "number_of_seed": 7, "seed_description": "ports",
    "available_tools": ["rag_search"], "on_missing_tool": "drop", "resource_types": ["knowledge_base"],
    "resource_init_configs": {"knowledge_base": {"top_k": 3}}, "sandbox_server_url": "http://127.0.0.1:1", "sandbox_token": "sesame",
    "sandbox_auto_start": False, "sandbox_config_path": "sandbox.yaml", "sandbox_timeout": 7.0, "max_sandboxes": 3,
    "model_name": "mine", "api_key": "sk-mine", "base_url": "http://127.0.0.1:2/v1", "api": "ollama", "temperature": 0.5,
    "top_p": 0.4, "max_tokens": 99, "max_text_chars": 40, "seed": 11, "extra_body": {"top_k": 3}, "vision": False, "max_concurrency": 9, "requests_per_minute": 60.0,
    "call_seconds": 8.0, "max_attempts": 2, "response_bytes": 5000, "structured": "text", "tokens": "exact", "prices": {"input": 1.0, "output": 2.0},
    "planner_model": {"temperature": 0.1}, "verifier_model": {"temperature": 0.2},
    "generator_model": {"temperature": 0.3}, "max_total_tokens": 5, "max_cost": 1.5, "max_seconds": 60.0,
    "sampling_tips": "dig", "max_depth": 4, "branching_factor": 3, "depth_threshold": 1, "verifier": "off",
    "on_unforkable": "refuse", "action_similarity": 0.5, "max_planner_calls": 1, "recovery_share": 0.5, "max_observation_chars": 900,
    "max_evidence_chars": 9000, "min_depth": 3, "max_selected_traj": 1,
    "path_similarity_threshold": 0.2, "selection_strategy": "diverse", "synthesis_tips": "ask why",
    "qa_examples": [{"question": "Who?", "answer": "Ada"}], "min_reasoning_steps": 4, "max_drafts": 2,
    "tasks": "text2sql", "max_questions": 5, "drafts": 9, "max_documents": 7, "max_groups": 2, "min_documents": 3, "repair": False, "fuzz": True, "licences": {"*": "CC0"}, "known": "drop", "closed_book_samples": 2,
    "evidence_samples": 1, "search_alternatives": False, "reader_model": {"temperature": 0.4}, "learner_model": {"temperature": 0.7},
    "agent_model": {"temperature": 0.6}, "difficulty": {"attempts": 4, "window": [0.2, 0.8], "max_turns": 3},
    "max_question_words": 30, "question_similarity": 0.5, "quotas": {"kind": 0.5, "answer": 0.1}, "max_open_trees": 2,
    "journal": "sqlite:///mine.db", "run_name": "mine", "save_prompts": False, "tracing": False, "host_name": "north", "launch_id": "0af3", "control": 8123,
    "rounds": 5,
    "held_out": 0.5,
    "learner": {"policy": {"model": "mine"}},
}  # fmt: skip
"""Every field with something that is not its default."""


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("SEEDS_FILE", "OUTPUT_DIR"):
        monkeypatch.delenv(name, raising=False)


def shown(config: SynthesisConfig, name: str) -> object:
    """A field as a file would say it."""
    own: object = getattr(config, name)
    if isinstance(own, RoleModel):
        return own.model_dump(mode="json", exclude_unset=True)
    return own.get_secret_value() if isinstance(own, SecretStr) else config.model_dump(mode="json")[name]


@pytest.mark.promise("synthesis:config:documented")
def test_every_documented_field_has_its_documented_default() -> None:
    config = SynthesisConfig()
    assert {name: shown(config, name) for name in DEFAULTS} == DEFAULTS
    assert config.sandbox_server_url is None
    assert str(config.output) == "synthesis_results"


@pytest.mark.promise("synthesis:config:fields")
def test_the_table_of_this_test_names_every_field() -> None:
    assert OTHERWISE.keys() == SynthesisConfig.model_fields.keys()


@pytest.mark.promise("synthesis:config:fields")
@pytest.mark.parametrize("name", OTHERWISE)
@pytest.mark.parametrize("source", ["json", "yaml", "environment", "word"])
def test_every_field_is_taken_from_every_source(
    name: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = OTHERWISE[name]
    assert shown(SynthesisConfig(), name) != value
    text = value if isinstance(value, str) else json.dumps(value)
    words, file = [], None
    match source:
        case "environment":
            monkeypatch.setenv(f"AGENTFLOW_{name.upper()}", text)
        case "word":
            words = [f"{name}={text}"]
        case _:
            file = Path(f"config.{source}")
            file.write_text(json.dumps({name: value}) if source == "json" else yaml.safe_dump({name: value}))
    assert shown(load_config(file, words), name) == value


@pytest.mark.promise("synthesis:config:references")
@pytest.mark.parametrize("name", [name for name, value in OTHERWISE.items() if isinstance(value, str)])
def test_every_string_may_reference_variables(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value = str(OTHERWISE[name])
    monkeypatch.setenv("MINE", value)
    Path("config.yaml").write_text(yaml.safe_dump({name: "${MINE}"}))
    assert shown(load_config("config.yaml"), name) == value
    monkeypatch.delenv("MINE")
    Path("config.yaml").write_text(yaml.safe_dump({name: f"${{MINE:-{value}}}"}))
    assert shown(load_config("config.yaml"), name) == value


@pytest.mark.promise("synthesis:config:documented")
@pytest.mark.parametrize("file", sorted(path.name for path in DOCUMENTED.glob("*.json")))
def test_the_documented_files_load_unchanged(file: str) -> None:
    config = load_config(DOCUMENTED / file)
    said = json.loads((DOCUMENTED / file).read_text())
    assert {name: shown(config, name) for name in said} == said
    assert config.offline is ("model_name" not in said)


@pytest.mark.promise("synthesis:config:prose")
@pytest.mark.parametrize("name", ["sampling_tips", "synthesis_tips", "seed_description"])
def test_a_long_text_may_be_a_list_of_lines(name: str) -> None:
    Path("config.yaml").write_text(yaml.safe_dump({name: ["one", "two"]}))
    assert shown(load_config("config.yaml"), name) == "one\ntwo"
    Path("config.yaml").write_text(yaml.safe_dump({name: ["one", 2]}))
    with pytest.raises(ConfigurationError, match=f"config.yaml: {name}"):
        load_config("config.yaml")


@pytest.mark.promise("synthesis:config:environment")
def test_the_documented_variables_apply_unless_ours_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("config.yaml").write_text("seeds_file: file\noutput_dir: file\n")
    monkeypatch.setenv("SEEDS_FILE", "a.jsonl")
    monkeypatch.setenv("OUTPUT_DIR", "b")
    config = load_config("config.yaml")
    assert (config.seeds_file, config.output_dir) == ("a.jsonl", "b")
    assert load_config("config.yaml", ["output_dir=word"]).output_dir == "word"
    monkeypatch.setenv("AGENTFLOW_OUTPUT_DIR", "ours")
    assert load_config("config.yaml").output_dir == "ours"


@pytest.mark.promise("synthesis:config:one-line")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_dept: 3", "max_dept is unknown; did you mean max_depth?"),
        ("target_qa_count: 3", "target_qa_count is unknown"),
        ("planner_model: {temprature: 1}", "planner_model.temprature is unknown; did you mean temperature?"),
        ("resource_types: [ragg]", "config.yaml: resource_types: ragg is unknown; did you mean rag?"),
        (
            "resource_init_configs: {knowledge_bas: {}}",
            "config.yaml: resource_init_configs: knowledge_bas is unknown; did you mean knowledge_base?",
        ),
        (
            "resource_init_configs: {web: {content: {serper_api_ke: x}}}",
            "config.yaml: resource_init_configs.web.serper_api_ke is unknown; did you mean serper_api_key?",
        ),
        (
            "resource_init_configs: {'tools.py:Clock': {a: 1}}",
            "resource_init_configs: backend 'tools.py:Clock' can't be loaded: tools.py: there is no such file",
        ),
        ("imports: [tools.py]", "config.yaml: imports: tools.py: there is no such file"),
        ("max_depth: 0", "max_depth: input should be greater than or equal to 1"),
        ("min_depth: 9", "min_depth: no path is that deep; lower it to 5, or raise max_depth"),
        ("path_similarity_threshold: 1.5", "path_similarity_threshold: input should be less than"),
        ("qa_examples: [{question: Who}]", "qa_examples: example 1 has no answer; add it"),
        ("verifier: maybe", "verifier: input should be 'rule', 'model' or 'off'"),
        (
            "selection_strategy: best",
            "selection_strategy: best is unknown; write novelty, documented, diverse or",
        ),
        ("selection_strategy: nowhere:best", "selection_strategy: nowhere: there is no such module next to"),
        ("selection_strategy: json:best", "selection_strategy: json:best: json has no best"),
        ("selection_strategy: json:__name__", "selection_strategy: json:__name__: not a function"),
    ],
)
def test_an_invalid_setting_gives_one_line(text: str, message: str) -> None:
    Path("config.yaml").write_text(text)
    with pytest.raises(ConfigurationError) as raised:
        load_config("config.yaml")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.promise("synthesis:config:offline")
def test_the_offline_engine_is_used_only_when_nothing_names_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_config().model.name == "offline"
    assert load_config(overrides=["base_url=", "temperature=0.5"]).model_for("planner").name == "offline"
    named = [
        "model_name=gpt-4.1-2025-04-14",
        "base_url=http://127.0.0.1:1",
        "api_key=sk",
        "planner_model.model_name=x",
    ]
    for word in named:
        config = load_config(overrides=[word])
        assert config.model_for("generator").name == "gpt-4.1-2025-04-14"
    monkeypatch.setenv("AGENTFLOW_MODEL_NAME", "mine")
    assert load_config().model.name == "mine"


@pytest.mark.promise("synthesis:config:offline")
@pytest.mark.parametrize("example", sorted(DOCUMENTED.glob("*.json")), ids=lambda path: path.stem)
def test_a_scenario_without_a_model_uses_the_documented_one_if_there_is_a_key(
    example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names_model = "model_name" in json.loads(example.read_text(encoding="utf-8"))
    monkeypatch.setenv("OPENAI_API_KEY", "")
    documented = "gpt-4.1-2025-04-14"
    assert load_config(example).model.name == (documented if names_model else "offline")
    monkeypatch.setenv("OPENAI_API_KEY", "sk")
    assert load_config(example).model.name == documented
    assert load_config(example, ["model_name=offline", "base_url=", "api_key="]).model.name == "offline"


@pytest.mark.promise("synthesis:config:tasks")
@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ({"resource_init_configs": {"database": {"connection_string": "sqlite:///a.db"}}}, "text2sql"),
        ({"resource_init_configs": {"sql": {"databases": {"a": "a.db"}}}, "tasks": "questions"}, None),
        ({"resource_init_configs": {"sql": {"databases": {"a": "a.db"}}, "rag": {"index_path": "a"}}}, None),
        ({"resource_init_configs": {"filesystem": {"data_dir": "tables"}}}, "data_analysis"),
        ({"resource_init_configs": {"data": {"folder": "tables"}}, "resource_types": ["code"]}, "data_analysis"),
        ({"resource_init_configs": {"filesystem": {"data_dir": "texts"}}}, None),
        ({"resource_init_configs": {"filesystem": {"data_dir": "texts"}}, "tasks": "data_analysis"}, "data_analysis"),
        ({"sandbox_server_url": "http://127.0.0.1:1", "resource_init_configs": {"sql": {"databases": {"a": "a.db"}}}}, None),
        ({"resource_types": ["database"]}, None),
        ({"resource_init_configs": {"sql": {"databases": {"a": "a.db"}}}, "available_tools": ["retrieval"]}, None),
        ({"resource_init_configs": {"data": {"folder": "tables"}}, "available_tools": ["rag_search"]}, None),
        ({"resource_init_configs": {"data": {"folder": "tables"}}, "available_tools": ["python_execute"]}, "data_analysis"),
        ({}, None),
    ],
)  # fmt: skip
def test_without_a_kind_of_tasks_the_resources_decide(said: dict[str, object], kind: str | None) -> None:
    for name in ("tables/a.csv", "texts/a.txt"):
        Path(name).parent.mkdir()
        Path(name).write_text("a,b\n1,2\n", encoding="utf-8")
    config = SynthesisConfig.model_validate(said)
    assert config.task_kind == kind
    assert config.identity()["tasks"] == kind


@pytest.mark.promise("synthesis:config:offline")
def test_the_bundled_corpus_is_explored_offline_whatever_key_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk")
    assert load_config().offline
    assert load_config(ROOT / "configs/synthesis/corpus.yaml").offline
    assert load_config(overrides=["planner_model.model_name=x"]).model_for("generator").name != "offline"


@pytest.mark.promise("synthesis:config:resources")
def test_a_backend_may_be_named_without_settings() -> None:
    Path("config.yaml").write_text("resource_init_configs:\n  rag:\n")
    assert load_config("config.yaml").resources == {"rag": {}}


@pytest.mark.promise("synthesis:config:models")
def test_a_role_uses_the_shared_model_settings_except_its_own() -> None:
    own = RoleModel(model_name="small", temperature=0.9)
    config = SynthesisConfig(
        model_name="big", api_key=SecretStr("sk"), temperature=0.1, max_attempts=2, planner_model=own
    )
    planner, generator = config.model_for("planner"), config.model_for("generator")
    assert (planner.name, planner.temperature, planner.max_attempts) == ("small", 0.9, 2)
    assert (generator.name, generator.temperature, generator.max_attempts) == ("big", 0.1, 2)
    assert planner.api_key.get_secret_value() == "sk"
    assert config.model == generator


@pytest.mark.promise("synthesis:config:models")
def test_every_setting_of_a_model_reaches_it() -> None:
    names = ("temperature", "top_p", "max_tokens", "max_text_chars", "seed", "extra_body", "vision", "max_concurrency", "call_seconds",
             "max_attempts", "response_bytes", "structured", "tokens", "base_url", "api")  # fmt: skip
    config = SynthesisConfig.model_validate(OTHERWISE | {"planner_model": {}})
    model = config.model_for("planner").model_dump()
    assert {name: model[name] for name in names} == {name: OTHERWISE[name] for name in names}
    assert model["prices"] == OTHERWISE["prices"]


@pytest.mark.promise("synthesis:config:models")
def test_tokens_are_requested_only_from_the_endpoint_they_were_set_for() -> None:
    elsewhere = RoleModel(base_url="http://127.0.0.1:9")
    config = SynthesisConfig(model_name="mine", tokens="exact", generator_model=elsewhere)
    assert config.model_for("planner").tokens == "exact"
    assert config.model_for("generator").tokens is False
    with pytest.raises(ConfigurationError, match="model offline: it returns no tokens; use vLLM"):
        make_model(SynthesisConfig(tokens=True).model, Accounts())
    for said, meant in (("true", True), ("exact", "exact"), (False, False)):
        config = SynthesisConfig.model_validate({"model_name": "mine", "tokens": said})
        assert config.model.tokens == meant


@pytest.mark.promise("synthesis:config:models")
def test_a_key_is_not_sent_to_another_endpoint() -> None:
    config = SynthesisConfig(
        api_key=SecretStr("sk"), generator_model=RoleModel(base_url="http://127.0.0.1:9")
    )
    assert config.model_for("generator").api_key.get_secret_value() == ""


@pytest.mark.promise("synthesis:config:models")
def test_the_api_of_one_endpoint_does_not_apply_to_another() -> None:
    config = SynthesisConfig(
        base_url="http://127.0.0.1:8",
        api="ollama",
        generator_model=RoleModel(base_url="http://127.0.0.1:9"),
    )
    assert (config.model_for("planner").api, config.model_for("generator").api) == ("ollama", "auto")


@pytest.mark.promise("synthesis:config:resources")
@pytest.mark.parametrize("settings", [{"index_path": "i"}, {"content": {"index_path": "i"}}])
def test_settings_of_resources_may_be_flat_or_under_content(settings: dict[str, object]) -> None:
    config = SynthesisConfig(
        resource_types=["filesystem"], resource_init_configs={"knowledge_base": settings}
    )
    assert config.resources == {"filesystem": {}, "knowledge_base": {"index_path": "i"}}
    assert config.sandbox.backend_settings == {"files": {}, "rag": {"index_path": "i"}}


@pytest.mark.promise("synthesis:config:resources")
def test_settings_of_the_sandbox_reach_it() -> None:
    Path("sandbox.yaml").write_text("env: {MINE: x}\nbackends: {bash: {output_characters: 9}}\ntimeout: 3\n")
    here = SynthesisConfig(
        sandbox_config_path="sandbox.yaml", resource_types=["code"], sandbox_timeout=7
    ).sandbox
    assert (here.env, here.timeout) == ({"MINE": "x"}, 7)
    assert here.backend_settings == {"bash": {"output_characters": 9}, "code": {}}
    there = SynthesisConfig(
        sandbox_server_url="http://127.0.0.1:1", sandbox_config_path="server.yaml"
    ).sandbox
    assert (there.server_url, there.auto_start, there.server_config) == (
        "http://127.0.0.1:1",
        True,
        Path("server.yaml"),
    )


@pytest.mark.promise("synthesis:config:fields")
def test_settings_of_growth_and_questions_take_effect() -> None:
    config = SynthesisConfig.model_validate(OTHERWISE)
    growth = config.growth
    assert (growth.max_depth, growth.branching_factor, growth.depth_threshold) == (4, 3, 1)
    assert (growth.action_similarity, growth.max_asks, growth.on_unforkable) == (0.5, 1, Unforkable.REFUSE)
    assert (growth.tips, growth.seed_description) == ("dig", "ports")
    assert config.examples == (Example("Who?", "Ada"),)
    assert growth.aims_of(0) == ()  # tasks have no kinds of questions
    questions = SynthesisConfig().growth
    turns = [questions.aims_of(seed) for seed in range(5)]
    assert turns[4] == turns[0]
    assert len({aim for turn in turns for aim in turn}) == 12


@pytest.mark.promise("synthesis:config:identity")
def test_the_identity_has_only_settings_that_affect_the_content() -> None:
    before = SynthesisConfig(model_name="big", api_key=SecretStr("sk")).identity()
    outside = {
        "seeds_file", "output_dir", "imports", "number_of_seed", "sandbox_server_url", "sandbox_token", "sandbox_auto_start", "sandbox_timeout",
        "max_sandboxes", "api_key", "base_url", "api", "max_concurrency", "requests_per_minute", "call_seconds", "max_attempts", "response_bytes", "structured",
        "prices", "max_total_tokens", "max_cost", "max_seconds", "max_open_trees", "journal", "run_name", "save_prompts", "tracing", "host_name", "launch_id", "control", "learner",
        "rounds", "held_out",
    }  # fmt: skip
    for name, value in OTHERWISE.items():
        after = SynthesisConfig.model_validate({"model_name": "big", "api_key": "sk", name: value}).identity()
        assert (after == before) is (name in outside), name


@pytest.mark.promise("synthesis:config:secrets")
def test_secrets_are_neither_shown_nor_part_of_the_identity() -> None:
    secrets = {
        "api_key": "sk-1-hidden",
        "planner_model": {"api_key": "sk-2-hidden"},
        "resource_init_configs": {"web": {"content": {"serper_api_key": "sk-3-hidden", "search": "serper"}}},
        "journal": "postgresql://me:sk-4-hidden@host/db",
        "extra_body": {"nested": [{"token": "sk-5-hidden"}]},
    }
    config = SynthesisConfig.model_validate(secrets)
    text = render_config(config)
    assert "hidden" not in text
    assert "hidden" not in json.dumps(config.identity())
    said = yaml.safe_load(text)
    assert said["api_key"] == "***"
    assert said["resource_init_configs"]["web"]["content"] == {"serper_api_key": "***", "search": "serper"}
    assert said["journal"] == "postgresql://me:***@host/db"


@pytest.mark.promise("synthesis:config:print")
def test_printed_settings_can_be_loaded_again() -> None:
    config = SynthesisConfig.model_validate(OTHERWISE | {"api_key": "", "sandbox_token": ""})
    Path("printed.yaml").write_text(render_config(config))
    again = load_config("printed.yaml")
    assert again.model_dump() == config.model_dump()
    assert again.identity() == config.identity()


@pytest.mark.promise("synthesis:config:examples")
@pytest.mark.parametrize("path", sorted((ROOT / "configs/synthesis").iterdir()), ids=lambda path: path.name)
def test_the_bundled_examples_load(path: Path) -> None:
    config = load_config(path)
    assert config.available_tools
    assert config.offline is (path.name == "corpus.yaml")


@pytest.mark.promise("synthesis:config:examples")
@pytest.mark.parametrize("path", sorted((ROOT / "configs/synthesis").iterdir()), ids=lambda path: path.name)
async def test_the_bundled_examples_name_existing_tools_and_settings(path: Path) -> None:
    config = load_config(path)
    async with Sandbox() as sandbox:
        for name in config.available_tools:
            assert await sandbox.tools(name)
    for name, settings in config.resources.items():
        # What it names need not be on this machine, but the names of the settings are right.
        try:
            load_backend(canonical_backend(name)).check(settings)
        except ConfigurationError as refused:
            assert "unknown" not in str(refused)
