"""Loads and saves models: Hugging Face folders (safetensors only), and the built-in tiny model by name."""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from spa.common import manifest
from spa.common.errors import error_message, first_line
from spa.common.files import atomic_folder
from spa.common.progress import note
from spa.config.schema import ModelConfig
from spa.models.folders import check_folder, check_tokenizer, check_weights, resolve_path
from spa.scale import ranks

_loading = threading.RLock()  # transformers patches torch while it loads a model
_threads_before = 0  # torch's own number of threads, while a setting has another
_calls = 0  # of ``restoring_threads`` under way
# Put before templates that write the date, so that a run has the same prompts on every day, and so has what it exports.
_TODAY = "{% macro strftime_now(format) %}26 Jul 2024{% endmacro %}"
_SMALL = ("*.json", "*.jinja", "*.txt", "*.model")  # what a tokenizer consists of


def check_model(config: ModelConfig, path: str | None = None) -> None:
    """Checks, without loading anything, that a local folder or built-in name can be a model.

    Raises:
        ValueError: as ``load_model`` and ``load_tokenizer`` for a missing or damaged folder or a missing device.
    """
    check_folder(path or config.path)
    if config.revision and Path(resolve_path(config.path)).is_dir():
        raise ValueError(
            f"model.revision={config.revision} is of a hub name, and {config.path} is a folder: set it to null"
        )
    pick_device(config.device)


def hub_options(path: str, model: ModelConfig | None = None) -> dict[str, Any]:
    """Whether a model's own code is run, and which revision of a hub name is loaded, as arguments of ``from_pretrained``.

    Args:
        model: the settings; None runs no code and loads the newest. The revision is that of ``model.path`` alone.
    """
    if model is None:
        return {"trust_remote_code": False}
    if model.trust_remote_code:
        _say_trusted(path)
    return {
        "trust_remote_code": model.trust_remote_code,
        **({"revision": model.revision} if model.revision and path == model.path else {}),
    }


@cache
def _say_trusted(path: str) -> None:
    note(f"model.trust_remote_code=true: Python code that {path} brings along is run")


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """Errors of transformers and the libraries below it, which have many types, as a ValueError of one line."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except BaseException as error:
        # a panic of tokenizers is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        text = first_line(error)
        if text.endswith(":"):
            text = error_message(error)
        if "couldn't connect" in text:
            text += " Fetch it where there is a network (`hf download NAME`), or give a folder (model=FOLDER)."
        raise ValueError(f"cannot {what}: {text}") from error


def load_tokenizer(path: str, model: ModelConfig | None = None, *, local_only: bool = False) -> Any:
    """The tokenizer of a model folder or hub name, with a pad token (that of the end, if it has one) and, where its chat template
    writes the date, a fixed one, which checkpoints keep; ``model`` as in ``hub_options``, ``local_only`` as in
    ``load_config``.

    Raises:
        ValueError: the folder has no tokenizer, or the name cannot be loaded.
    """
    folder = resolve_path(path)
    check_tokenizer(folder, path)
    manifest.check(folder, *_SMALL)
    with _loading, _reading(f"load a tokenizer from {path!r}"):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=local_only, **hub_options(path, model))
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    template = tokenizer.chat_template
    if isinstance(template, str) and "strftime_now" in template and not template.startswith(_TODAY):
        tokenizer.chat_template = _TODAY + template
    return tokenizer


def load_config(path: str, model: ModelConfig | None = None, *, local_only: bool = False) -> Any:
    """The transformers config of a model folder or hub name (``local_only``: only if already on disk).

    Raises:
        ValueError: it cannot be read.
    """
    folder = resolve_path(path)
    with _loading, _reading(f"read the model config of {path!r}"):
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(folder, local_files_only=local_only, **hub_options(path, model))


def context_length(config: Any) -> int | None:
    """The tokens that a model can attend to, if its transformers config says so."""
    text = config.get_text_config()
    most = getattr(text, "max_position_embeddings", None)
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    stretched = rope.get("rope_type") in ("yarn", "linear", "dynamic")
    if most and stretched and rope.get("original_max_position_embeddings", most) == most:
        return int(most * rope.get("factor", 1))
    return most


def check_vocabulary(tokenizer: Any, config: Any) -> None:
    """Refuses a tokenizer with ids that the embedding of ``config``'s model lacks; those of images and sound never occur in text.

    Raises:
        ValueError: there are such ids.
    """
    size = getattr(config.get_text_config(), "vocab_size", None)
    if not size:
        return
    unused = {getattr(tokenizer, f"{kind}_token", None) for kind in ("image", "audio", "video")}
    beyond = {
        number: token for token, number in tokenizer.get_vocab().items() if number >= size and token not in unused
    }
    if beyond:
        last = max(beyond)
        raise ValueError(
            f"the tokenizer has ids up to {last} ({beyond[last]!r}), and the model's embedding has {size} rows: call "
            "model.resize_token_embeddings(len(tokenizer)) and save the model again"
        )


def check_same_vocabulary(tokenizer: Any, path: str, model: ModelConfig) -> None:
    """Refuses a model that reads other ids than ``tokenizer`` writes, by its embedding and, if it has one, its tokenizer.

    Raises:
        ValueError: it reads others, or its config cannot be read.
    """
    check_vocabulary(tokenizer, load_config(path, model))
    try:
        other = load_tokenizer(path, model)
    except ValueError:  # it needs none
        return
    if other.get_vocab() != tokenizer.get_vocab():
        raise ValueError(
            f"its tokenizer has other ids than that of {tokenizer.name_or_path}, so the same ids are other text to it: choose "
            "a model with the same tokenizer"
        )


def check_quantization(config: Any) -> None:
    """Refuses quantized weights that transformers cannot load here: their package is missing or too old, or a GPU is needed.

    Raises:
        ValueError: it cannot; the message names the package.
    """
    from transformers.quantizers import AutoHfQuantizer

    quantized = _quantization(config)
    try:
        if quantized and AutoHfQuantizer.supports_quant_method(quantized):  # others are loaded as they are
            AutoHfQuantizer.from_config(quantized, pre_quantized=True).validate_environment(device_map=None)
    except Exception as error:  # mostly ImportError
        raise ValueError(f"its weights are quantized: {error_message(error)}") from error


def check_trainable(config: Any) -> None:
    """Refuses weights that stay quantized once loaded: no step would change them, and no adapter could be merged into them.

    Raises:
        ValueError: as ``check_quantization``, or they stay so.
    """
    check_quantization(config)
    quantized = _quantization(config)
    settings = quantized if isinstance(quantized, dict) else vars(quantized) if quantized else {}
    if quantized and not settings.get("dequantize"):
        raise ValueError(
            "its weights are quantized, which stages 2 and 3 cannot train: use the original weights, with LoRA "
            "(sft.lora_rank, ppo.lora_rank) and model.dtype=bfloat16 where memory is short"
        )


def _quantization(config: Any) -> Any:
    parts = (config, config.get_text_config())
    return next((found for part in parts if (found := getattr(part, "quantization_config", None))), None)


def bytes_of(precision: str) -> int:
    """Bytes of one number."""
    dtype: torch.dtype = getattr(torch, precision)
    return dtype.itemsize


def load_model(config: ModelConfig, path: str | None = None, dtype: torch.dtype | None = None) -> Any:
    """A causal language model (``sdpa`` attention) on its device, in its dtype; ``path`` overrides ``config.path``.

    Raises:
        ValueError: unknown device, or a model that cannot be loaded, is damaged or lacks weights.
    """
    with _loading:
        return _load_model(config, path, dtype)


def _load_model(config: ModelConfig, path: str | None, dtype: torch.dtype | None) -> Any:
    from transformers import AutoModelForCausalLM
    from transformers.utils.peft_utils import find_adapter_config_file

    _leave_imports_alone()
    _bound_onednn()
    device = pick_device(config.device)
    folder = resolve_path(path or config.path)
    check_weights(folder, path or config.path)
    manifest.check(folder, "*config.json", "*.safetensors*")
    revision = hub_options(path or config.path, config).get("revision")
    if find_adapter_config_file(folder, revision=revision):  # which names a base, anywhere
        raise ValueError(
            f"{path or config.path} holds LoRA adapters beside a model (adapter_config.json): merge them, or remove that file"
        )
    with _reading(f"load a model from {path or config.path!r}"), without_bars():
        model, report = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype or getattr(torch, config.dtype),
            attn_implementation="sdpa",
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, by name
            **hub_options(path or config.path, config),
        )
    if missing := sorted(report["missing_keys"]):  # transformers initialises them randomly
        raise ValueError(
            f"the weights of {path or config.path} lack {', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}: they are "
            "damaged, or not those of a causal language model"
        )
    if other := sorted(report["mismatched_keys"]):
        name, stored, expected = other[0]
        raise ValueError(
            f"the weights of {path or config.path} do not fit its config.json, by which {name} has the shape "
            f"{[*expected]}, not {[*stored]}: save or copy the model again"
        )
    if config.gradient_checkpointing:
        enable_checkpointing(model)
    return model.to(device)


def _bound_onednn() -> None:
    """Bounds what oneDNN and PyTorch's layer above it keep of products of earlier shapes (they read this at the first one): 1,024
    of each by default, which is gigabytes where lengths vary."""
    for capacity in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(capacity, "128")


@contextmanager
def without_bars() -> Iterator[None]:
    """Without the progress bars of transformers."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@cache
def _leave_imports_alone() -> None:
    """Excludes the 340,000 objects created by importing torch and transformers from garbage collection, once and before models
    exist: each full collection, even during a rollout, would take 0.2 s. Not in another's program, whose objects it would keep."""
    if "spa.cli.app" in sys.modules:
        gc.collect()
        gc.freeze()


def load_weights(model: Any, folder: str | os.PathLike[str], config: ModelConfig) -> None:
    """Loads the weights of a checkpoint of the same model, which was loaded with ``config``, in place.

    Raises:
        ValueError: it cannot be loaded.
    """
    other = load_model(replace(config, device=str(model.device)), str(folder), model.dtype)
    ranks.copy_weights(model, other.state_dict())


def enable_checkpointing(model: Any) -> None:
    """Enables activation checkpointing: stores one input per layer and recomputes the rest in the backward pass."""
    if hasattr(model, "activation_checkpointing_enable"):  # the name in newer versions of transformers
        model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def pick_device(name: str) -> torch.device:
    """``auto`` is CUDA if available, else the CPU. Raises ValueError for a device that is unavailable or neither of these."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device: torch.device | None = None
    with suppress(RuntimeError):
        device = torch.device(name)
    if device is None or device.type not in ("cpu", "cuda"):  # torch knows others, such as mps and meta
        raise ValueError(f"unknown model.device {name!r}; use auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"model.device={name} but no CUDA device is available; use model.device=cpu")
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise ValueError(f"model.device={name} but the last of {count} CUDA devices is cuda:{count - 1}")
    return device


def set_threads(config: ModelConfig) -> None:
    """Applies ``model.threads`` to torch (0: as it was before another call applied its own)."""
    global _threads_before
    if config.threads:
        _threads_before = _threads_before or torch.get_num_threads()
        torch.set_num_threads(config.threads)
    elif _threads_before:
        torch.set_num_threads(_threads_before)
        _threads_before = 0


@contextmanager
def restoring_threads() -> Iterator[None]:
    """Leaves torch with as many threads as it had, whatever ``model.threads`` is meanwhile; of calls at once the last does."""
    global _calls
    with _loading:
        _calls += 1
    try:
        yield
    finally:
        with _loading:
            _calls -= 1
            if not _calls:
                set_threads(ModelConfig())


def save_model(model: Any, tokenizer: Any, folder: str | os.PathLike[str], state: dict[str, Any] | None = None) -> None:
    """Atomically writes a plain Hugging Face folder and, next to the weights, ``trainer_state.pt``.

    ``state`` may hold tensors, numbers, strings and containers of them; it is read back with ``weights_only=True``. With it the
    folder gets a manifest, which loading compares with what it reads. LoRA adapters are merged into the weights and also written
    separately to ``adapter/``.
    """
    with atomic_folder(folder) as temporary:
        _write_model(model, tokenizer, temporary, state)
        if state is not None:
            manifest.write_manifest(temporary)


def _write_model(
    model: Any,
    tokenizer: Any,
    folder: Path,
    state: dict[str, Any] | None,
    weights: dict[str, torch.Tensor] | None = None,
    adapters: dict[str, torch.Tensor] | None = None,
) -> None:
    """``weights`` and ``adapters`` replace those of the model."""
    from spa.models import lora

    if lora.has_lora(model):
        weights = lora.merged_state(model) if weights is None else weights
        lora.save_adapter(model, folder / "adapter", adapters)
    parted = weights is not None and _parted(model, weights)
    with without_bars():
        model.save_pretrained(folder, safe_serialization=True, state_dict=weights)  # which empties it
    if parted:  # vLLM and llama.cpp leave out the head of a model that ties it
        path = folder / "config.json"
        settings = json.loads(path.read_text(encoding="utf-8")) | {"tie_word_embeddings": False}
        path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    tokenizer.save_pretrained(folder)
    if state is not None:
        with open(folder / "trainer_state.pt", "wb") as file:  # given a path, torch does not say why it cannot write
            torch.save(state, file)


def save_checkpoint(
    model: Any,
    tokenizer: Any,
    folder: Path,
    state: dict[str, Any],
    optimizer: torch.optim.Optimizer,
    modules: Mapping[str, Any],
) -> None:
    """``save_model`` by several ranks: the tensors of ``optimizer`` and ``modules`` are written sharded, beside ``state``
    (``scale.checkpoints``)."""
    from spa.models import lora
    from spa.scale.checkpoints import save_tensors, shared_folder
    from spa.scale.fsdp import on_main_cpu

    weights = on_main_cpu(lora.merged_state(model) if lora.has_lora(model) else model.state_dict())
    adapters = on_main_cpu(dict(lora.adapter_weights(model)))
    if getattr(model.config, "tie_word_embeddings", False) and not _parted(model, weights):
        weights.pop("lm_head.weight", None)
    with shared_folder(folder) as temporary:
        if ranks.is_main():
            _write_model(model, tokenizer, temporary, state, weights, adapters)
        save_tensors(temporary, optimizer, modules)
        ranks.on_main(lambda: manifest.write_manifest(temporary))


def _parted(model: Any, weights: Mapping[str, torch.Tensor]) -> bool:
    """Whether adapters of the head or of the embeddings part the weights that the model ties."""
    head = weights.get("lm_head.weight")
    if head is None or not getattr(model.config, "tie_word_embeddings", False):
        return False
    others = (value for value in weights.values() if value is not head and value.shape == head.shape)
    return not any(torch.equal(head, value) for value in others)


def load_sharded(folder: Path, optimizer: torch.optim.Optimizer, modules: Mapping[str, Any]) -> None:
    """Loads the tensors of a checkpoint that several ranks wrote, if it is one.

    Raises:
        ValueError: it is of other weights.
    """
    if (folder / "trainer_state").is_dir():
        from spa.scale.checkpoints import load_tensors

        load_tensors(folder, optimizer, modules)


def load_state(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The trainer state of a checkpoint.

    Raises:
        ValueError: there is none (a plain model folder cannot be resumed from) or it is damaged; also later, where an entry
            is read that another version did not save.
    """
    path = Path(folder) / "trainer_state.pt"
    if not path.is_file():
        raise ValueError(
            f"{folder} has no trainer_state.pt: training cannot be resumed from it (it can still be loaded)"
        )
    manifest.check(path.parent, path.name)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many types for a damaged archive
        raise ValueError(f"{path} is damaged: {first_line(error)}") from error
    if not isinstance(state, dict) or "step" not in state:
        raise ValueError(f"{path} is not the state of a training")
    return _State(state, path=path)


class _State(dict[str, Any]):
    def __init__(self, values: Mapping[str, Any], path: Path) -> None:
        super().__init__(values)
        self._path = path

    def __missing__(self, key: str) -> Any:
        raise ValueError(
            f"{self._path} has no {key!r}, so another version of spa saved it: resume with that one, or start the stage anew "
            "in another folder"
        )


class ValueHead(nn.Linear):
    """Hidden state -> value. Initialised to 0, so that the first advantages are the returns."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__(hidden_size, 1)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)
