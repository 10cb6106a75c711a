"""Every row of the migration guides holds. The heading of a table selects its check."""

import ast
import importlib
import inspect
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args
from unittest.mock import patch

import pytest
import yaml
from pydantic import BaseModel, SecretStr

import agentflow.compat as compat
from agentflow import Sandbox, SynthesisPipeline, construct_solver, quick_rollout, synthesize
from agentflow.cli._main import command_parser
from agentflow.errors import ErrorKind
from agentflow.learner import TrainConfig, load_train_config
from agentflow.models import OFFLINE, Accounts, ModelSettings, make_model
from agentflow.models._providers import full_name
from agentflow.readers._settings import READERS, parse_source
from agentflow.rollouts import rollout
from agentflow.sandbox import ToolResult
from agentflow.sandbox._tool_host import Names, canonical_backend, documented_arguments
from agentflow.scoring import metric_names
from agentflow.synthesis import SynthesisConfig
from agentflow.team import Solver
from agentflow.team._solver import tool_name
from agentflow.tuner import TuneConfig
from agentflow.tuner.judges import make_judge
from mcp_servers import BACKENDS, ToolError, load_backend
from tests.agentflow.compat.test_printed_files import PRINTED, commands
from tests.behaviour._tree import ROOT

GUIDES = ("data-synthesis", "flow-grpo", "tuner")
OFFERED: dict[str, object] = {
    "Sandbox": Sandbox, "Solver": Solver, "SynthesisPipeline": SynthesisPipeline, "quick_rollout": quick_rollout,
    "construct_solver": construct_solver, "rollout": rollout, "synthesize": synthesize,
}  # fmt: skip
"""Functions and classes of the calls."""
RECORDED = "Files of AgentJet's repository"
"""Heading of a table that was made once: its files are not ours."""
READER_TYPES = {"jsonl_dataset_file", "huggingface_dat_repo", "env_service", "tracing", "data_generation"}
"""Types of readers that AgentJet's settings name."""


class Row(NamedTuple):
    """A row of a table."""

    heading: str
    """Heading of its section."""
    printed: str
    """First cell."""
    here: str
    """Second cell."""


def rows(guide: str) -> Iterator[Row]:
    heading = ""
    for line in (ROOT / f"docs/migrating-{guide}.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        elif heading != RECORDED and line.startswith("| ") and not line.startswith(("| printed", "| ---")):
            printed, here = (cell.strip() for cell in line.strip("| ").split(" | "))
            yield Row("Edits" if printed.startswith(("`self.", "`executor")) else heading, printed, here)


ROWS = [row for guide in GUIDES for row in rows(guide)]


def plain(cell: str) -> str:
    """Return the code of a cell."""
    assert cell.startswith("`"), cell
    assert cell.endswith("`"), cell
    return cell[1:-1]


def imported(text: str) -> dict[str, object]:
    assert compat.PRINTED_MODULES
    names: dict[str, object] = {}
    exec(text, names)
    return {name: value for name, value in names.items() if name != "__builtins__"}


def check_import(row: Row) -> None:
    printed, here = imported(plain(row.printed)), imported(plain(row.here))
    assert printed == here
    assert printed


def bound(text: str) -> None:
    """Check that a call fits the signature of the function."""
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call)
    function: Any = eval(compile(ast.Expression(call.func), "guide", "eval"), dict(OFFERED))
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    assert not any(isinstance(value, ast.Starred) for value in values)
    inspect.signature(function).bind(
        *call.args, **{str(keyword.arg): keyword.value for keyword in call.keywords}
    )
    if isinstance(call.func, ast.Name) and call.func.id == "construct_solver":
        eval(text, dict(OFFERED))


def check_call(row: Row) -> None:
    bound(plain(row.printed))
    bound(plain(row.here))


def check_edit(row: Row) -> None:
    ast.parse(plain(row.printed))
    bound(plain(row.here))


def fields_of(model: type[BaseModel]) -> set[str]:
    """Return all settings below a model, dotted."""
    found: set[str] = set()
    for name, field in model.model_fields.items():
        found.add(name)
        for part in (*get_args(field.annotation), field.annotation):
            if inspect.isclass(part) and issubclass(part, BaseModel) and part is not model:
                found |= {f"{name}.{inner}" for inner in fields_of(part)}
    return found


def check_setting(row: Row) -> None:
    if row.here.startswith("`") and plain(row.here) in fields_of(TrainConfig):
        return
    own: object = getattr(SynthesisConfig(), plain(row.printed))
    value = own.get_secret_value() if isinstance(own, SecretStr) else own
    assert value == ast.literal_eval(plain(row.here))


def check_key_of_file(row: Row) -> None:
    setting, _, options = plain(row.here).partition(".options.")
    assert (f"{setting}.options" if options else setting) in fields_of(TuneConfig)


def check_published(row: Row) -> None:
    config = load_train_config(ROOT / "configs/train/qwen2.5-7b_8gpu.yaml")
    name, _, text = plain(row.here).partition("=")
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    assert value == yaml.safe_load(text)
    printed = re.search(r"`(.+)`", row.printed)
    assert printed is not None
    assert value == float(printed[1])


def check_tool(row: Row) -> None:
    names = Names(tool for name in BACKENDS for tool in load_backend(name).tools)
    (printed, given), (here, ours) = (plain(cell).rstrip(")").split("(") for cell in (row.printed, row.here))
    tool = names.find(printed)
    assert tool.route == here
    known: Any = tool.input_schema.get("properties", {})
    arguments = documented_arguments(printed, known, {name: 1 for name in given.split(", ") if name})
    assert [name for name in arguments if name != "engine"] == [name for name in ours.split(", ") if name]
    assert set(arguments) <= set(known)


def check_result(row: Row) -> None:
    ast.parse(plain(row.printed))
    done = ToolResult(True, {"stdout": "hi"})
    failed = ToolResult(False, {"stdout": ""}, ToolError(ErrorKind.TIMEOUT, "too slow"))
    for result in (done, failed):
        value: object = eval(plain(row.here), {"result": result, "str": str})
        assert type(value) in (bool, str)


def check_command(row: Row) -> None:
    printed, here = plain(row.printed), plain(row.here)
    program, *words = shlex.split(here)
    if program == "agentflow":
        command_parser().parse_args(words)
    else:
        assert program == "make"
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    first, *rest = shlex.split(printed)
    if first == "ajet":
        with patch("agentflow.cli.main", return_value=0) as run:
            assert compat.ajet(rest) == 0
        (given,) = run.call_args.args
        assert command_parser().parse_args(given) == command_parser().parse_args(words)
    else:
        assert printed in commands("flow_grpo")
        assert rest[0].replace("exp/", "test/exp/") in PRINTED


def check_file(row: Row) -> None:
    printed, here = plain(row.printed), plain(row.here)
    assert (ROOT / here).is_file()
    if printed.endswith((".md", "/.env.template")):
        assert here.endswith((".md", ".env.template"))
    elif printed not in PRINTED:
        # Made by the program beside it.
        assert here.startswith("data/")
        assert Path(printed).name in commands("flow_grpo") or "parquet" in printed


def check_part(row: Row) -> None:
    module, _, name = plain(row.here).rpartition(".")
    assert name in importlib.import_module(module).__all__


def check_member(row: Row) -> None:
    assert plain(row.printed)
    module, name = plain(row.here).rsplit(".", 1)
    if module == "agentflow.tuner":
        assert name in importlib.import_module(module).__all__
        return
    module, _, owner = module.rpartition(".")
    kind: Any = getattr(importlib.import_module(module), owner)
    assert owner in importlib.import_module(module).__all__
    assert hasattr(kind, name) or name in kind.__annotations__ or name in getattr(kind, "model_fields", ())


def check_engine(row: Row) -> None:
    assert full_name(ModelSettings(name=plain(row.printed))) == plain(row.here)


def check_metric(row: Row) -> None:
    assert {plain(row.printed), plain(row.here)} <= set(metric_names())


def check_resource(row: Row) -> None:
    assert canonical_backend(plain(row.printed)) == plain(row.here)
    assert plain(row.here) in BACKENDS


def check_solver_tool(row: Row) -> None:
    assert tool_name(plain(row.printed)) == plain(row.here)


def check_reader(row: Row) -> None:
    assert plain(row.printed) in READER_TYPES
    source = parse_source(plain(row.here))
    assert source.reader in READERS or Path(source.target).suffix == ".jsonl"


def check_judge(row: Row) -> None:
    spec: Any = yaml.safe_load(plain(row.here))
    model = make_model(ModelSettings(name=OFFLINE), Accounts())
    assert make_judge(spec, model=model).name


def check_key(row: Row) -> None:
    assert plain(row.printed) == plain(row.here)
    assert plain(row.printed) in solved()


CHECKS: dict[str, Callable[[Row], None]] = {
    "AgentJet's files": check_key_of_file,
    "Calls": check_call,
    "Commands": check_command,
    "Edits": check_edit,
    "Engines": check_engine,
    "Files": check_file,
    "Imports": check_import,
    "Judges": check_judge,
    "Keys of the result": check_key,
    "Metrics": check_metric,
    "Parts": check_part,
    "Published training settings": check_published,
    "Resource types": check_resource,
    "Results": check_result,
    "Settings": check_setting,
    "Task readers": check_reader,
    "Tools": check_tool,
    "Tools of the solver": check_solver_tool,
    "Workflows": check_member,
}
"""Heading -> check of its rows."""

_solved: dict[str, Any] = {}


def solved() -> dict[str, Any]:
    """Return the result of a solver, made once."""
    if not _solved:
        solver = construct_solver("offline", enabled_tools=["retrieval"], max_steps=1)
        _solved.update(solver.solve("In which year was Skyreach Observatory founded?"))
    return _solved


@pytest.mark.promise("compat:guides")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.heading}: {row.printed[:60]}")
def test_a_row_of_a_migration_guide_holds(row: Row) -> None:
    CHECKS[row.heading](row)


@pytest.mark.promise("compat:guides")
@pytest.mark.parametrize("guide", GUIDES)
def test_a_guide_has_rows_and_is_in_the_contents(guide: str) -> None:
    assert len(list(rows(guide))) >= 20
    assert f"(migrating-{guide}.md)" in (ROOT / "docs/README.md").read_text(encoding="utf-8")
