"""Uploads a model folder to the Hugging Face hub. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from spa.common.errors import error_message
from spa.common.secrets import redact


def check_push(repo: str) -> None:
    """Raises ValueError, before anything is written, for a bad repository name, without a token, or offline."""
    from huggingface_hub import constants, get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise ValueError(f"--push {repo}: {str(error).splitlines()[0]}") from error
    if constants.HF_HUB_OFFLINE:
        raise ValueError("--push: HF_HUB_OFFLINE is set; unset it, or upload the folder elsewhere with `hf upload`")
    if get_token() is None:
        raise ValueError("--push: no token for the hub; log in with `hf auth login` or set HF_TOKEN")


def upload(folder: Path, repo: str, *, public: bool = False) -> str:
    """Uploads a folder, to a new private repository if there is none of that name; returns the address of the commit.

    Raises:
        ValueError: as ``check_push``; the hub cannot be reached or refuses.
    """
    from huggingface_hub import HfApi

    check_push(repo)
    api = HfApi()
    try:
        api.create_repo(repo, private=not public, exist_ok=True)
        return str(api.upload_folder(repo_id=repo, folder_path=str(folder), commit_message="Upload by spa export"))
    except Exception as error:  # of the hub's client, whose errors are those of several libraries
        raise ValueError(f"--push {repo} failed: {redact(error_message(error))[:300]}; {folder} is written") from error
