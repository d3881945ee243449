"""Converts a GGUF file (llama.cpp's format) to a plain Hugging Face folder and checks the result.

Transformers dequantizes the weights and rebuilds the tokenizer; what it gets wrong or leaves behind is repaired here.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from spa.common.errors import error_message
from spa.models.load import without_bars
from spa.models.score import Chosen, sum_logprobs

MAX_PERPLEXITY = 60.0  # of the text below; SmolLM2-135M has 35
ENGLISH = (
    "Water boils at a lower temperature on a high mountain than at the sea, because there is less air above it that presses "
    "on its surface. A cook who lives in the mountains therefore has to boil potatoes for a longer time. In a closed pot "
    "the steam cannot escape, the pressure rises, and the food is done sooner."
)


def convert(file: Path, folder: Path) -> str:
    """Writes the model and tokenizer of ``file`` as float32 to ``folder``; returns the licence that the file names, or "".

    Raises:
        ValueError: the packages of the extra ``gguf`` are missing, the file is no GGUF model that transformers knows.
    """
    try:
        import accelerate  # noqa: F401
        from gguf import GGUFReader
    except ImportError as error:
        raise ValueError(f"a GGUF file needs the extra gguf: pip install 'spa-agent[gguf]' ({error})") from error
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    try:
        fields = GGUFReader(str(file)).fields
        facts = {name: fields[name].contents() for name in ("tokenizer.ggml.pre", "general.license") if name in fields}
        with contextlib.redirect_stderr(io.StringIO()):  # a progress bar that cannot be turned off
            tokenizer = AutoTokenizer.from_pretrained(**source, trust_remote_code=False)
            model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32, trust_remote_code=False)
    except Exception as error:  # many types, for a damaged file or an unknown architecture
        raise ValueError(f"cannot convert {file}: {error_message(error)}") from error
    _repair_tokenizer(tokenizer, facts.get("tokenizer.ggml.pre", ""), model.config.max_position_embeddings)
    _forget_quantization(model)
    with without_bars():
        model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)
    return str(facts.get("general.license", ""))


def _repair_tokenizer(tokenizer: Any, pre: str, max_length: int) -> None:
    """Restores what the conversion loses: digits as single tokens (SmolLM), the length limit, the pad token."""
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    if pre == "smollm":
        byte_level = ByteLevel(add_prefix_space=False, use_regex=True)
        tokenizer.backend_tokenizer.pre_tokenizer = Sequence([Digits(individual_digits=True), byte_level])
    tokenizer.model_max_length = max_length
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token


def _forget_quantization(model: Any) -> None:
    """The weights are plain numbers now, but ``save_pretrained`` refuses a model that says it is quantized."""
    model.hf_quantizer, model.is_quantized = None, False
    for name in ("quantization_config", "_model_name_or_path"):
        if hasattr(model.config, name):
            delattr(model.config, name)


def check(folder: Path) -> Iterator[str]:
    """Checks a model folder; yields a line for each check passed.

    Raises:
        ValueError: a check failed: the tokenizer does not give back the worlds' text, the chat template has no generation prompt
            or does not end a turn with the end-of-text token, or the model does not read English.
    """
    from spa.config.schema import ModelConfig
    from spa.models.load import load_model, load_tokenizer

    tokenizer = load_tokenizer(str(folder))
    texts = world_texts()
    for text in texts:
        back = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False), clean_up_tokenization_spaces=False)
        if back != text:
            raise ValueError(f"{folder}: the tokenizer turns {text!r} into {back!r}")
    yield f"tokenizer: {len(texts)} states, symbols and actions of all worlds come back as they were"
    yield f"chat template: {_check_template(tokenizer)}"
    model = load_model(ModelConfig(device="cpu"), str(folder), torch.float32)
    ids = tokenizer.encode(ENGLISH, add_special_tokens=False)
    perplexity = math.exp(min(-sum_logprobs(model, [Chosen(ids, range(1, len(ids)))])[0] / (len(ids) - 1), 700))
    if not perplexity <= MAX_PERPLEXITY:
        raise ValueError(
            f"{folder}: perplexity {perplexity:.0f} on English text, above {MAX_PERPLEXITY:.0f}: not converted well"
        )
    yield f"English text: perplexity {perplexity:.1f} (at most {MAX_PERPLEXITY:.0f})"


def _check_template(tokenizer: Any) -> str:
    if not tokenizer.chat_template:
        raise ValueError("the model has no chat template: use an instruction-tuned one")
    messages = [{"role": "user", "content": "probe"}, {"role": "assistant", "content": "answer"}]
    asked = tokenizer.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True)
    answered = tokenizer.apply_chat_template(messages, tokenize=False)
    if not answered.startswith(f"{asked}answer{tokenizer.eos_token}"):
        raise ValueError(
            "the chat template has no generation prompt, or an answer does not end with the end-of-text token"
        )
    for token in (tokenizer.eos_token, tokenizer.bos_token):
        if token and len(tokenizer.encode(token, add_special_tokens=False)) != 1:
            raise ValueError(f"the tokenizer splits its special token {token!r}")
    return f"generation prompt {asked.rpartition('probe')[2]!r}, a turn ends with {tokenizer.eos_token!r}"


def world_texts() -> list[str]:
    """A state, the symbols and the actions of every built-in world that is installed, and numbers."""
    from spa.envs import make_env
    from spa.envs.registry import BUILT_IN

    texts = [
        "0 1 2 3 4 5 6 7 8 9",
        "(12,345)",
        " 67",
        "<think> <observation>\n",
        "</observation> <prediction>\n",
        "||",
        "\t\n\n",
    ]
    for name in BUILT_IN:
        try:
            env = make_env(name)
        except ValueError:  # its extra is not installed
            continue
        state, _ = env.reset(seed=0)
        texts += [state, *env.symbols, *(env.actions or ())]
        env.close()
    return list(dict.fromkeys(texts))
