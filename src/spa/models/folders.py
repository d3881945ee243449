"""Locates and checks model folders. Imports no torch and reads only the header of weight files."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

from spa.common.cache import CACHED, cache_folder
from spa.common.checkpoints import list_checkpoints
from spa.common.files import expanded
from spa.common.names import choose
from spa.models.deepen import deepened

BUILTIN = ("tiny", "tiny4")  # of two layers, and of four


def identity(model: str | None) -> str:
    """What distinguishes a model from others and from itself before it was trained again: its folder's name, and the size and time
    of each file in it. Where the folder lies does not matter: a run may be moved."""
    if not model or not (folder := expanded(model).resolve()).is_dir():
        return str(model)
    files = [(path.name, path.stat()) for path in sorted(folder.iterdir()) if path.is_file()]
    return f"{folder.name} {[(name, stat.st_size, stat.st_mtime_ns) for name, stat in files]}"


def resolve_path(path: str) -> str:
    """A folder or hub name; ``builtin:tiny`` becomes the packaged folder, ``builtin:tiny4`` the one that ``deepened`` makes of it,
    ``cache:NAME`` that of ``spa model get NAME``.

    Raises:
        ValueError: unknown built-in model, a model that is not in the cache, a GGUF file, or a path that looks local and does
            not exist.
    """
    if path.startswith("builtin:"):
        name = choose("built-in model", path.removeprefix("builtin:"), BUILTIN)
        packaged = Path(str(resources.files("spa.models").joinpath("builtin", "tiny")))
        return str(deepened(packaged) if name == "tiny4" else packaged)
    if path.startswith(CACHED):
        name = path.removeprefix(CACHED)
        if not (cache_folder(name) / "config.json").is_file():
            from spa.models.get import KNOWN

            how = name if name in KNOWN else f"{name} --from FILE.gguf"
            raise ValueError(f"the model {name!r} is not in the cache yet: run `spa model get {how}`")
        return str(cache_folder(name))
    looks_local = (
        path.startswith((".", "/", "~")) or path.count("/") > 1 or "global_step_" in path or path.endswith(".gguf")
    )
    hides_hub_name = not looks_local and "/" in path and Path(path).parent.is_dir()
    folder = expanded(path)
    gguf = [folder] if path.endswith(".gguf") and folder.is_file() else sorted(folder.glob("*.gguf"))
    if gguf and not any(folder.glob("*.safetensors")):
        raise ValueError(
            f"{path} is a GGUF model, which cannot be trained: convert it once with `spa model get NAME --from {gguf[0]}`, "
            "then use model=cache:NAME"
        )
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            if (folder / "adapter_config.json").is_file():
                raise ValueError(
                    f"{path} holds LoRA adapters alone: merge them into their model (`spa export` does so without --adapter, peft "
                    "with merge_and_unload) and give that folder"
                )
            checkpoints = list_checkpoints(folder)
            example = f"its last checkpoint, {checkpoints[-1][1]}" if checkpoints else "such as .../global_step_N"
            if (folder / "run.json").is_file():
                example = (
                    f"such as the last checkpoint of {folder}/sft or {folder}/variants/VARIANT/ppo: this is a run's"
                )
            raise ValueError(f"{path} holds no model (no config.json); give a Hugging Face folder, {example}")
        return str(folder)
    if looks_local or hides_hub_name or folder.exists():
        why = f" (the folder {folder.parent} exists, so this is not taken for a hub name)" if hides_hub_name else ""
        raise ValueError(f"no model folder {path}{why}")
    return path


def check_folder(path: str, *, tokenizer: bool = True) -> None:
    """Checks that a local folder or built-in name holds a model; hub names are not checked.

    Args:
        tokenizer: whether one is required.

    Raises:
        ValueError: no such folder, or it lacks a config, a tokenizer or complete weights.
    """
    folder = resolve_path(path)
    if tokenizer:
        check_tokenizer(folder, path)
    check_weights(folder, path)


def check_tokenizer(folder: str, path: str) -> None:
    """Raises ValueError if ``folder`` (``path`` resolved) is a folder without a tokenizer."""
    files = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")
    if Path(folder).is_dir() and not any((Path(folder) / name).is_file() for name in files):
        raise ValueError(
            f"{path} has no tokenizer (no tokenizer.json): save the model's tokenizer into the same folder"
        )


def check_weights(folder: str, path: str) -> None:
    """Raises ValueError if ``folder`` (``path`` resolved) is a folder without weights or with a damaged weight file."""
    from safetensors import SafetensorError, safe_open

    if not Path(folder).is_dir():
        return
    files = sorted(Path(folder).glob("*.safetensors"))
    if not files:
        other = "; *.bin are not read, which may hold code" if any(Path(folder).glob("*.bin")) else ""
        raise ValueError(f"{path} has no weights (no *.safetensors{other}): save or copy the model again")
    if lacks := sorted(_listed(Path(folder)) - {file.name for file in files}):
        raise ValueError(
            f"{Path(path) / lacks[0]} is missing, which the index of its weights lists: copy the model again"
        )
    for file in files:
        try:
            with safe_open(file, framework="numpy"):
                pass
        except SafetensorError as error:
            raise ValueError(f"{file} is damaged ({error}): save or copy the model again") from error


def _listed(folder: Path) -> set[str]:
    """The files of weights in several, by their index."""
    index = folder / "model.safetensors.index.json"
    try:
        return set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()) if index.is_file() else set()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{index} is damaged: copy the model again") from error
