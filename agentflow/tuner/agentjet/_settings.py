"""Settings files of AgentJet as settings of a tuning. What has no counterpart is named, one line each."""

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

from agentflow._typeguards import is_list, is_object
from agentflow.errors import ConfigurationError
from agentflow.learner.trackers import TrackerName
from agentflow.settings import merge, nearest
from agentflow.tuner._config import AGENTJET

logger = logging.getLogger(__name__)

_BOILERPLATE: Final = ("hydra", "defaults")
_BACKBONES: Final = {"trinity": "trinity.options"} | dict.fromkeys(
    ("actor_rollout_ref", "algorithm", "critic", "ray_kwargs", "trainer"), "verl.options"
)
"""Native sections of backbones, and the settings that have their place."""
_READERS: Final = "agentflow.tuner.agentjet"
_LOOPBACK: Final = "http://127.0.0.1"


class Key(NamedTuple):
    """A key of AgentJet: its default, and the setting that it becomes or the reason why it has none."""

    default: object
    """AgentJet's default."""
    setting: str = ""
    """Our setting; empty: none of its own."""
    why: str = ""
    """Reason that another value than the default has no effect; empty: it has one."""
    change: Callable[[Any], object] | None = None
    """Conversion of its value; one to `None` leaves the setting out."""


_ALWAYS = "the gateway is always on"
_EXACT = "calls are joined by their exact tokens"
_FREE = "no answer is penalised for its form"
_DEBUG = "backbone=debug plays one episode after the other at engine.base_url"
_ENGINE = "one vLLM server is started; name replicas in engine.base_url"
_VERL = "actor_rollout_ref.actor.fsdp_config"
_KL: Final = {"low_var_kl": "k3", "kl": "k1", "mse": "k2"}


def _trackers(logger_name: object) -> list[str] | None:
    names = [str(one) for one in (logger_name if is_list(logger_name) else [logger_name])]
    known = [name for name in names if name in get_args(TrackerName)]
    return ["console", "jsonl", *(name for name in known if name not in ("console", "jsonl"))]


KEYS: Final[Mapping[str, Key]] = {
    "project_name": Key("ajet_default_project", "trackers.project"),
    "experiment_name": Key("read_yaml_name", "output_dir"),
    "experiment_dir": Key("auto", "output_dir"),
    "backbone": Key("verl", "backbone"),
    "model.path": Key(None, "policy.model"),
    "data.max_prompt_length": Key(3000, why="rollout.max_model_len bounds prompts and answers"),
    "data.max_response_length": Key(15000, why="rollout.max_model_len bounds prompts and answers"),
    "data.train_batch_size": Key(32, "schedule.tasks_per_step"),
    "rollout.user_workflow": Key(None, "solve"),
    "rollout.force_disable_toolcalls": Key(False, "engine.server.tool_parser", change={True: ""}.get),
    "rollout.max_env_worker": Key(64, "episodes.max_workers"),
    "rollout.gamma": Key(1.0, why="rewards of calls are turn_rewards of an outcome"),
    "rollout.compute_madness_checklist": Key(["nonsense"], why=_FREE),
    "rollout.agent_madness_termination": Key(True, why=_FREE),
    "rollout.agent_madness_reward": Key(-1.0, why=_FREE),
    "rollout.max_response_length_in_one_turn": Key(4096),
    "rollout.max_model_len": Key(18000, "engine.server.max_model_len"),
    "rollout.multi_turn.max_sample_per_task": Key(30, why="no call is left out"),
    "rollout.multi_turn.max_steps": Key(30, "episodes.max_turns"),
    "rollout.multi_turn.expected_steps": Key(1, why="it need not be known"),
    "rollout.tensor_model_parallel_size": Key(1, "engine.server.options.tensor-parallel-size"),
    "rollout.n_vllm_engine": Key(1, why=_ENGINE),
    "rollout.max_num_seqs": Key(10, "engine.server.options.max-num-seqs"),
    "rollout.name": Key("vllm", why="the engine is vLLM"),
    "rollout.mode": Key("async", why="the engine is asynchronous"),
    "rollout.num_repeat": Key(4, "schedule.episodes_per_task"),
    "rollout.temperature": Key(0.9, "episodes.temperature"),
    "rollout.top_p": Key(1.0, why="trained agents sample from the whole distribution"),
    "rollout.val_kwargs.temperature": Key(0.0, "validation.temperature"),
    "rollout.val_kwargs.top_k": Key(-1, why="validation samples from the whole distribution"),
    "rollout.val_kwargs.top_p": Key(1.0, why="validation samples from the whole distribution"),
    "rollout.val_kwargs.do_sample": Key(False),
    "rollout.val_kwargs.num_repeat": Key(1, "validation.samples"),
    "rollout.enable_oversample": Key(False, "schedule.replace_equal"),
    "rollout.submit_oversample_multiplier": Key(1.5, "schedule.replace_equal"),
    "context_tracker.timeline_merging_policy.timeline_compare_level": Key("text", why=_EXACT),
    "context_tracker.timeline_merging_policy.ignore_tools": Key(True, why=_EXACT),
    "context_tracker.fix_retokenization_drift": Key(True, why=_EXACT),
    "context_tracker.log_tool_format_check": Key(False, why="calls are shown by agentflow view"),
    "context_tracker.log_tool_format_error_detail": Key(False, why="calls are shown by agentflow view"),
    "context_tracker.detect_timeline_snap": Key(False, why="episodes/forks counts them"),
    "context_tracker.alien_llm_model": Key("qwen3-235b-a22b-instruct-2507"),
    "context_tracker.alien_llm_response_length": Key(512),
    "debug.debug_max_parallel": Key(4, why=_DEBUG),
    "debug.debug_first_n_tasks": Key(2, "schedule.tasks_per_step"),
    "debug.debug_vllm_port": Key(18000, "engine.base_url"),
    "debug.debug_vllm_seed": Key(12345, why=_DEBUG),
    "debug.debug_tensor_parallel_size": Key(4, why=_DEBUG),
    "trainer_common.val_before_train": Key(False, "validation.eval_on_start"),
    "trainer_common.val_pass_n": Key(4, why="pass@k is that of validation.samples"),
    "trainer_common.save_freq": Key(20, "schedule.save_steps"),
    "trainer_common.test_freq": Key(20, "validation.eval_steps"),
    "trainer_common.total_epochs": Key(50, "schedule.epochs"),
    "trainer_common.total_training_steps": Key(None, "schedule.steps"),
    "trainer_common.nnodes": Key(1, "verl.nodes"),
    "trainer_common.n_gpus_per_node": Key(8, "verl.gpus"),
    "trainer_common.logger": Key("swanlab", "trackers.use", change=_trackers),
    "trainer_common.algorithm.adv_estimator": Key("grpo", "loss.name"),
    "trainer_common.algorithm.use_kl_in_reward": Key(False, why="the KL term is part of the loss"),
    "trainer_common.mini_batch_num": Key(1, "schedule.steps_per_batch"),
    "trainer_common.fsdp_config.param_offload": Key(True, f"verl.options.{_VERL}.param_offload"),
    "trainer_common.fsdp_config.optimizer_offload": Key(True, f"verl.options.{_VERL}.optimizer_offload"),
    "trainer_common.optim.lr": Key(1e-6, "optimizer.learning_rate", change=float),
    "trainer_common.use_kl_loss": Key(True, "loss.kl_coef"),
    "trainer_common.kl_loss_coef": Key(0.002, "loss.kl_coef"),
    "trainer_common.kl_loss_type": Key("low_var_kl", "loss.kl_estimator", change=_KL.get),
    "trainer_common.ulysses_sequence_parallel_size": Key(1, why="set it in verl.options"),
    "trainer_common.checkpoint_base_dir": Key("./saved_checkpoints", why="checkpoints are in output_dir"),
    "trainer_common.save_trajectory_as_json_file": Key(False),
    "enable_experimental_interchange_server": Key(False),
    "interchange_server": Key({}, why=_ALWAYS),
    "task_runner.llm_infer_submit_method": Key("async"),
    "task_runner.wrapper_type": Key("asyncio-with-gc", why="each episode has a thread and an event loop"),
    "task_runner.wrapper_multiprocessing_timeout": Key(3600, "episodes.episode_seconds", change=float),
    "task_judge.judge_type": Key("customized_protocol", "reward"),
    "task_judge.judge_protocol": Key(None, "reward"),
    "task_judge.alien_llm_model": Key("qwen3-235b-a22b-instruct-2507"),
    "task_judge.alien_llm_response_length": Key(512),
    "task_judge.rubrics_auto_grader": Key({}, "reward"),
    "task_reader": Key({}, "tasks.reader"),
    "execute_test": Key(False, why="it is for AgentJet's own tests"),
    "execute_testing_lambda": Key("", why="it is for AgentJet's own tests"),
}
"""Keys below `ajet`. See docs/migrating-tuner.md."""
_SECTIONS: Final = frozenset(
    key[:index] for key in KEYS for index, letter in enumerate(key) if letter == "."
) | {"task_reader"}  # fmt: skip
"""Keys with keys below."""
_READER_DEFAULTS: Final[Mapping[str, object]] = {
    "type": "huggingface_dat_repo",
    "env_service": {"env_type": "appworld", "env_url": f"{_LOOPBACK}:8080", "training_split": "train", "validation_split": "dev"},
    "huggingface_dat_repo": {"dataset_path": "gsm8k", "training_split": "train", "validation_split": "validation"},
}  # fmt: skip


class FileSettings(dict[str, Any]):
    """Settings of a file, by attribute: `config.ajet.rollout.max_model_len`."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any value of a file
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{name}: there is no such setting{nearest(name, self)}") from None


def with_defaults(content: Mapping[str, Any]) -> FileSettings:
    """Return the content of a file with AgentJet's defaults. See docs/migrating-tuner.md."""
    own: dict[str, Any] = {"task_reader": _READER_DEFAULTS}
    for key, rule in KEYS.items():
        if key != "task_reader":
            _put(own, key, rule.default)
    return _by_attribute(merge({AGENTJET: own}, content))


def convert_settings(
    content: Mapping[str, Any], file: str, above: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the content of AgentJet's file as settings of a tuning; log a line for each key without an effect.

    See docs/migrating-tuner.md.

    :param above: settings that override those of the file.
    :raises ConfigurationError: if it can't be converted; one line.
    """
    above = above or {}
    given: object = content[AGENTJET]
    if not is_object(given):
        raise ConfigurationError(f"{file}: {AGENTJET}: is no mapping; write names with values")
    for section in sorted(_SECTIONS):
        if not is_object(_get(given, section) or {}):
            raise ConfigurationError(f"{file}: {AGENTJET}.{section}: is no mapping; write names with values")
    for line in _lines(content, given):
        logger.warning("%s: %s", file, line)
    config = with_defaults(content)
    # AgentJet's workflows name any model.
    settings: dict[str, Any] = {"agentjet": dict(content), "gateway": {"any_model": True}}
    for key, rule in KEYS.items():
        value = _get(config[AGENTJET], key)
        if rule.change is not None:
            value = rule.change(value)
        if rule.setting and value is not None and key not in _TOGETHER:
            _put_setting(settings, rule.setting, value)
    _convert_together(config[AGENTJET], settings, file)
    debug = (above.get("backbone") or settings["backbone"]) == "debug"
    engine: object = above.get("engine")
    if debug:
        settings["schedule"]["tasks_per_step"] = config.ajet.debug.debug_first_n_tasks
        settings["engine"] = {"base_url": f"{_LOOPBACK}:{config.ajet.debug.debug_vllm_port}/v1"}
    if is_object(engine) and engine.get("base_url"):
        settings.pop("engine")
    if not above.get("tasks"):
        settings |= _sources(config, file)
    return settings


_TOGETHER: Final = frozenset(
    {key for key, rule in KEYS.items() if rule.setting in ("output_dir", "loss.kl_coef", "schedule.replace_equal", "reward")}
    | {"task_reader", "debug.debug_first_n_tasks", "debug.debug_vllm_port"}
)  # fmt: skip
"""Keys that decide a setting with others."""


def _convert_together(own: FileSettings, settings: dict[str, Any], file: str) -> None:
    name, folder = own.experiment_name, own.experiment_dir
    name = Path(file).stem if name == "read_yaml_name" else name
    settings["output_dir"] = f"saved_experiments/{name}" if folder == "auto" else folder
    common, rollout, judge = own.trainer_common, own.rollout, own.task_judge
    settings["loss"]["kl_coef"] = common.kl_loss_coef if common.use_kl_loss else 0.0
    if rollout.enable_oversample:
        settings["schedule"]["replace_equal"] = max(rollout.submit_oversample_multiplier - 1.0, 0.0)
    if judge.judge_type == "rubrics_auto_grader":
        settings["reward"] = {"rubric": {}}
        grader = judge.rubrics_auto_grader.get("model_name", "qwen-max")
        settings["episodes"]["evaluator_model_name"] = grader if "/" in grader else f"dashscope/{grader}"
    else:
        # The workflow class calls its judge, which sees everything that the workflow returned.
        settings["reward"] = "workflow"


def _sources(config: FileSettings, file: str) -> dict[str, Any]:
    """Return the training and held-out tasks."""
    reader = config.ajet.task_reader
    kind = reader.type
    own = reader.get(kind, {})
    match kind:
        case "huggingface_dat_repo":
            readers = [
                {"source": f"{_READERS}:dataset_tasks", "options": {"path": own.dataset_path, "split": split}}
                for split in (own.training_split, own.validation_split)
            ]
        case "jsonl_dataset_file" | "dataset_file":
            parts = [own.get("training"), own.get("validation")]
            readers = [
                {"source": f"{_READERS}:jsonl_tasks", "options": {"path": part["file_path"]}}
                if part
                else None
                for part in parts
            ]
        case "env_service":
            readers = [
                {
                    "source": f"environment:{own.env_url}",
                    "options": {"env_type": own.env_type, "split": split},
                }
                for split in (own.training_split, own.validation_split)
            ]
        case "random_dummy":
            readers = [{"source": f"{_READERS}:dummy_tasks"}, None]
        case _:
            raise ConfigurationError(
                f"{file}: task_reader.type: {kind} is not read from AgentJet's file; set tasks.reader, see docs/readers.md"
            )
    training, validation = readers
    return {"tasks": {"reader": training}} | ({"validation": {"reader": validation}} if validation else {})


def _lines(content: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each key without an effect."""
    for name in content:
        if name in _BACKBONES:
            yield f"{name}: settings of a backbone are not read; write those that apply in {_BACKBONES[name]}"
        elif name not in (AGENTJET, *_BOILERPLATE):
            yield f"{name}: is kept for the workflow, as config.{name}"
    for key, value in _leaves(own):
        rule = KEYS.get(key)
        if rule is None:
            section, _, name = key.rpartition(".")
            hint = nearest(
                name, [one.rpartition(".")[2] for one in KEYS if one.rpartition(".")[0] == section]
            )
            meant = hint if "did you mean" in hint else ""
            yield f"{AGENTJET}.{key}: is no key of AgentJet, and is kept for the workflow{meant}"
        elif rule.why and value != rule.default:
            yield f"{AGENTJET}.{key}: has no effect: {rule.why}"
        elif key == "trainer_common.logger" and value not in get_args(TrackerName):
            yield f"{AGENTJET}.{key}: {value} is no tracker; set trackers.use to some of {', '.join(get_args(TrackerName))}"


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        key = f"{prefix}{name}"
        if key in _SECTIONS and key not in KEYS and is_object(value):
            yield from _leaves(value, f"{key}.")
        else:
            yield key, value


def _put_setting(settings: dict[str, Any], path: str, value: object) -> None:
    """Store a value; names of options keep their dots."""
    section, options, name = path.partition(".options.")
    if options:
        present: dict[str, object] = _get(settings, f"{section}.options") or {}
        _put(settings, f"{section}.options", {**present, name: value})
    else:
        _put(settings, path, value)


def _put(values: dict[str, Any], path: str, value: object) -> None:
    *sections, name = path.split(".")
    for section in sections:
        values = values.setdefault(section, {})
    values[name] = value


def _get(values: Mapping[str, Any], path: str) -> Any:  # noqa: ANN401 - any value
    found: Any = values
    for name in path.split("."):
        found = found.get(name) if is_object(found) else None
    return found


def _by_attribute(value: Mapping[str, Any]) -> FileSettings:
    return FileSettings({name: _by_attribute(one) if is_object(one) else one for name, one in value.items()})
