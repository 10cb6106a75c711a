"""Base of all runs: settings, output directory, models, tools, seed scheduler, progress and files.

A run has seeds in a journal; its scheduler claims them and works on several at once. Everything a run needs is opened
and closed by its supervisor.
"""

from typing import TYPE_CHECKING

from agentflow.runs._config import CORPUS_TOOLS, USUAL_TOOLS, Prose, RoleModel, RunConfig, render_config
from agentflow.runs._directory import (
    CONTROL_FILE,
    JOURNAL_FILE,
    AtomicFiles,
    Resume,
    report_disk_errors,
    write_report_page,
)
from agentflow.runs._exported_images import BlobReader, ExportedImages, image_file, image_record
from agentflow.runs._html import ResultRecord, html_card
from agentflow.runs._output_lock import check_output, is_output_abandoned, is_output_active, lock_output
from agentflow.runs._pause_gate import PauseGate
from agentflow.runs._progress import MeasuredProgress, Phase, RunProgress, RunStatus
from agentflow.runs._report_texts import (
    cost_by_role,
    cost_text,
    counts_text,
    duration_text,
    estimates_text,
    failures_text,
    one_line,
    prices_as_of,
    report_table,
    role_names,
    speed_text,
    usage_text,
)
from agentflow.runs._throughput import ThroughputMeter
from runtimes._lazy import lazy_exports

if TYPE_CHECKING:
    from agentflow.runs._control_address import ControlAddress, read_control_address
    from agentflow.runs._prompts import read_prompt
    from agentflow.runs._run import SupervisedRun, check_models, run_in_place, run_sync, traced_run
    from agentflow.runs._run_records import RUN_MODELS, RUN_START, RunModels, RunStart
    from agentflow.runs._screen import (
        Printable,
        PrintableData,
        ProgressScreen,
        on_terminal,
        open_screen,
        open_terminal,
        progress_table,
        run_table,
        show_progress,
    )
    from agentflow.runs._seed_scheduler import GRACE_SECONDS
    from agentflow.runs._supervised_resources import (
        SandboxPool,
        open_models,
        open_supervised,
        prices_of,
        start_child,
    )
    from agentflow.runs._tools import (
        ChosenTools,
        choose_tools,
        explores_bundled_corpus,
        sandbox_settings,
        unused_arguments,
    )
    from agentflow.runs._unusable_answers import AnswerGuard, RoleReplies, may_pass

__all__ = [
    "CONTROL_FILE",
    "CORPUS_TOOLS",
    "GRACE_SECONDS",
    "JOURNAL_FILE",
    "RUN_MODELS",
    "RUN_START",
    "USUAL_TOOLS",
    "AnswerGuard",
    "AtomicFiles",
    "BlobReader",
    "ChosenTools",
    "ControlAddress",
    "ExportedImages",
    "MeasuredProgress",
    "PauseGate",
    "Phase",
    "Printable",
    "PrintableData",
    "ProgressScreen",
    "Prose",
    "ResultRecord",
    "Resume",
    "RoleModel",
    "RoleReplies",
    "RunConfig",
    "RunModels",
    "RunProgress",
    "RunStart",
    "RunStatus",
    "SandboxPool",
    "SupervisedRun",
    "ThroughputMeter",
    "check_models",
    "check_output",
    "choose_tools",
    "cost_by_role",
    "cost_text",
    "counts_text",
    "duration_text",
    "estimates_text",
    "explores_bundled_corpus",
    "failures_text",
    "html_card",
    "image_file",
    "image_record",
    "is_output_abandoned",
    "is_output_active",
    "lock_output",
    "may_pass",
    "on_terminal",
    "one_line",
    "open_models",
    "open_screen",
    "open_supervised",
    "open_terminal",
    "prices_as_of",
    "prices_of",
    "progress_table",
    "read_control_address",
    "read_prompt",
    "render_config",
    "report_disk_errors",
    "report_table",
    "role_names",
    "run_in_place",
    "run_sync",
    "run_table",
    "sandbox_settings",
    "show_progress",
    "speed_text",
    "start_child",
    "traced_run",
    "unused_arguments",
    "usage_text",
    "write_report_page",
]

# Names that need servers or a journal; the settings need neither.
__getattr__ = lazy_exports(
    __name__,
    {
        "._run": ["SupervisedRun", "check_models", "run_in_place", "run_sync", "traced_run"],
        "._control_address": ["ControlAddress", "read_control_address"],
        "._prompts": ["read_prompt"],
        "._run_records": ["RUN_MODELS", "RUN_START", "RunModels", "RunStart"],
        "._screen": [
            "Printable",
            "PrintableData",
            "ProgressScreen",
            "on_terminal",
            "open_screen",
            "open_terminal",
            "progress_table",
            "run_table",
            "show_progress",
        ],
        "._seed_scheduler": ["GRACE_SECONDS"],
        "._supervised_resources": [
            "SandboxPool",
            "open_models",
            "open_supervised",
            "prices_of",
            "start_child",
        ],
        "._tools": [
            "ChosenTools",
            "choose_tools",
            "explores_bundled_corpus",
            "sandbox_settings",
            "unused_arguments",
            "write_report_page",
        ],
        "._unusable_answers": ["AnswerGuard", "RoleReplies", "may_pass"],
    },
)
