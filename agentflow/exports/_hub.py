"""Upload of an export to the Hugging Face hub."""

import os
from pathlib import Path
from urllib.parse import urlsplit

from agentflow._terminal import printable
from agentflow.errors import ConfigurationError
from agentflow.exports._writing import MANIFEST
from agentflow.extras import missing_extra


def push_export(folder: str | Path, repository: str) -> str:
    """Upload an export as a data set and return its address; a new one is private.

    The library's own settings apply: `HF_TOKEN` or a login, `HF_ENDPOINT`. See docs/exports.md.

    :param repository: `OWNER/NAME`.
    :raises ConfigurationError: one line, if the folder is no export, a library is missing, or the hub refuses.
    """
    if not (Path(folder) / MANIFEST).is_file():
        raise ConfigurationError(f"{folder}: has no {MANIFEST}; name the folder of an export")
    if len(repository.split("/")) != 2 or not all(repository.split("/")):
        raise ConfigurationError(f"--push-to-hub: {repository} is no OWNER/NAME")
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise ConfigurationError(missing_extra("--push-to-hub", "datasets")) from None
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    try:
        made = api.create_repo(repository, repo_type="dataset", private=True, exist_ok=True)
        api.upload_folder(
            folder_path=folder,
            repo_id=repository,
            repo_type="dataset",
            commit_message="Upload an export of AgentFlow",
            delete_patterns="*",  # files of an earlier export
        )
    except Exception as error:  # the library raises many types: network, rights, names
        why = printable(str(error)).strip().splitlines() or [type(error).__name__]
        where = urlsplit(api.endpoint).netloc
        raise ConfigurationError(
            f"--push-to-hub: {where} refused {repository}: {why[0]}; the files are in {folder}"
        ) from None
    return str(made)
