"""Whole rollouts with one call."""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike, fspath
from typing import Any

import msgspec

from agentflow.rollouts._config import RolloutConfig, load_rollout_config
from agentflow.rollouts._result import TaskResult, result_record, trajectory_record
from agentflow.rollouts._run import RolloutRun
from agentflow.rollouts._tasks import Tasks, assign, read_pictures
from agentflow.rollouts.analysis import summary_card
from agentflow.runs import ResultRecord, html_card, run_sync
from agentflow.trace import Task

__all__ = ["RolloutConfig", "aquick_rollout", "arollout", "load_rollout_config", "quick_rollout", "rollout"]


def rollout(
    config_path: str | PathLike[str] | None = None,
    data_path: Tasks | None = None,
    *,
    evaluate: bool | None = None,
    metric: str | None = None,
    overrides: Iterable[str] = (),
    **settings: Any,  # noqa: ANN401 - any setting, by its name
) -> dict[str, Any]:
    """Work on tasks and score the answers. The same call resumes a run that ended early.

    It also works inside a running event loop, as in a notebook.

    :param config_path: settings file, JSON or YAML.
    :param data_path: file of tasks, or tasks; `None`: those of the settings.
    :param evaluate: score the answers.
    :param metric: name of the metric.
    :param overrides: `key=value` settings that override the file.
    :param settings: any setting by name, overriding all other sources: `max_workers=8`.
    :return: `summary`, `results` (a record per task) and `output_dir`.
    :raises ConfigurationError: one line, if something can't be used; nothing was begun.
    :raises RunStopped: if it ended early; the same call resumes it.

    See docs/rollout.md for examples.
    """
    return run_sync(
        arollout, config_path, data_path, evaluate=evaluate, metric=metric, overrides=overrides, **settings
    )


async def arollout(
    config_path: str | PathLike[str] | None = None,
    data_path: Tasks | None = None,
    *,
    evaluate: bool | None = None,
    metric: str | None = None,
    overrides: Iterable[str] = (),
    **settings: Any,  # noqa: ANN401 - any setting, by its name
) -> dict[str, Any]:
    """Work on tasks and score the answers. See `rollout`.

    Example::

        record = await arollout(benchmark_name="bamboogle", output_dir="my_output")
    """
    named: dict[str, object] = {"evaluate_results": evaluate, "evaluation_metric": metric}
    if isinstance(data_path, str | PathLike):
        named["data_path"], data_path = fspath(data_path), None
    config = load_rollout_config(config_path, overrides, settings | _given(named))
    records: list[dict[str, object]] = []
    run = RolloutRun(config, in_order=lambda result: records.append(result_record(result)))
    summary = await run.run(assign(config, data_path))
    record = _plain({"summary": summary, "results": records, "output_dir": str(config.output)})
    return ResultRecord(record, summary_card(summary))


def quick_rollout(
    question: str,
    *,
    tools: Sequence[str] | None = None,
    model_name: str | None = None,
    sandbox_url: str | None = None,
    answer: str | Sequence[str] | None = None,
    images: Sequence[str | PathLike[str]] = (),
    config_path: str | PathLike[str] | None = None,
    **settings: Any,  # noqa: ANN401 - any setting, by its name
) -> dict[str, Any]:
    """Answer one question. It also works inside a running event loop, as in a notebook.

    Example::

        quick_rollout("What is the capital of France?", tools=["rag:search"], model_name="gpt-4.1-2025-04-14")["answer"]

    :param tools: tools that may be used, by any of their names; by default the search of the bundled corpus.
    :param model_name: model of all roles; by default the offline engine, unless another setting names a model.
    :param sandbox_url: URL of a running tool server; by default tools run in this process.
    :param answer: reference answer, or several; if given, the answer is scored.
    :param images: image files that belong to the question.
    :param settings: any setting by name: `agent="single"`, `max_turns=3`, `output_dir="kept"`.
    :return: `answer`, `success`, `trajectory`, and the other fields of a line of the results.
    :raises ConfigurationError: if something can't be used, in one line.
    :raises RunStopped: if the model fails for good, or a budget is used up.
    """
    return run_sync(
        aquick_rollout,
        question,
        tools=tools,
        model_name=model_name,
        sandbox_url=sandbox_url,
        answer=answer,
        images=images,
        config_path=config_path,
        **settings,
    )


async def aquick_rollout(
    question: str,
    *,
    tools: Sequence[str] | None = None,
    model_name: str | None = None,
    sandbox_url: str | None = None,
    answer: str | Sequence[str] | None = None,
    images: Sequence[str | PathLike[str]] = (),
    config_path: str | PathLike[str] | None = None,
    **settings: Any,  # noqa: ANN401 - any setting, by its name
) -> dict[str, Any]:
    """Answer one question. See `quick_rollout`.

    Example::

        answer = (await aquick_rollout("What is the capital of France?"))["answer"]
    """
    named = {"available_tools": tools, "model_name": model_name, "sandbox_server_url": sandbox_url}
    values: dict[str, Any] = _given(named) | settings
    if answer is None:
        values.setdefault("evaluate_results", False)
    references = (answer,) if isinstance(answer, str) else tuple(answer or ())
    pictures = read_pictures(images)
    task = Task(index=0, id="question", question=question, references=references, images=tuple(pictures))
    with tempfile.TemporaryDirectory(prefix="agentflow-") as folder:
        config = load_rollout_config(config_path, (), {"output_dir": folder, **values})
        results: list[TaskResult] = []
        summary = await RolloutRun(config, in_order=results.append).run(assign(config, [task], pictures))
    record, trajectory = result_record(results[0]), trajectory_record(results[0])
    answered = "question", "answer", "success", "score", "failure"
    shown = [(name, str(record[name])) for name in answered if record.get(name) is not None]
    whole = _plain({**record, "trajectory": trajectory, "summary": summary})
    return ResultRecord(whole, html_card("Quick rollout", shown))


def _given(named: Mapping[str, object]) -> dict[str, Any]:
    return {name: value for name, value in named.items() if value is not None}


def _plain(record: Mapping[str, object]) -> dict[str, Any]:
    """Return the record as plain JSON types."""
    return msgspec.json.decode(msgspec.json.encode(record))
