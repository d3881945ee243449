"""The built-in tiny model: a small Llama architecture and a byte-level tokenizer of its own.

The tokenizer can write any text. What a text world is made of becomes single tokens: a cell, a coordinate pair, a
phrase of the coordinate sentence, an action name, a tag.

Why not Qwen2, whose networks are nearly the same: transformers 5 ignores the tokenizer class of a ``qwen2`` checkpoint and
replaces its pre-tokenizer by Qwen's, so this tokenizer would silently cut text otherwise once saved and loaded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic.dataclasses import dataclass

from spa.agent.response import TAGS, closing, opening
from spa.config.fields import STRICT, AboveZero, Positive

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TAG_TOKENS = tuple(token for tag in TAGS for token in (opening(tag), closing(tag)))

# What may become one token, in order of preference: a coordinate pair; an action separator; a phrase of words (with
# symbols in parentheses) up to its opening parenthesis; a single cell, digit or mark with the space after it.
PIECES = (
    r"\(\d,\d\)"
    r"| \|\| "
    r"|[;,.]? ?[A-Z]?[a-z]+(?: [a-z]+| \(\S\))*(?: (?=\())?"
    r"|\d,"
    r"|[^\s\p{L}](?: (?!\|\|))?"
    r"|\s+"
    r"|\p{L}"
)


@dataclass(config=STRICT)
class TinySize:
    """Dimensions of the tiny model. A ``head_dim`` of 32 is the least that vLLM accepts."""

    hidden_size: Positive = 128
    num_layers: Positive = 2
    num_heads: Positive = 4
    num_kv_heads: Positive = 1
    intermediate_size: Positive = 256
    rope_theta: AboveZero = 100.0
    max_positions: Positive = 4096
    init_std: AboveZero = 0.06  # the usual .02 does not learn to copy in a short training

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads or self.hidden_size % (2 * self.num_heads):
            raise ValueError("num_heads must be a multiple of num_kv_heads, and hidden_size one of 2 x num_heads")


LEAST_VOCABULARY = 256 + len(SPECIAL) + len(_TAG_TOKENS)  # all bytes, and what is always one token


def build_tokenizer(texts: Iterable[str], vocab_size: int = 512) -> Any:
    """A byte-level BPE tokenizer, with a ChatML template, trained on ``texts``; deterministic."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(_TAG_TOKENS),
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in _TAG_TOKENS])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def build_model(vocab_size: int, size: TinySize, seed: int, *, eos_id: int, pad_id: int) -> Any:
    """A freshly initialised model; the same seed gives the same weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=size.hidden_size,
        num_hidden_layers=size.num_layers,
        num_attention_heads=size.num_heads,
        num_key_value_heads=size.num_kv_heads,
        head_dim=size.hidden_size // size.num_heads,
        intermediate_size=size.intermediate_size,
        max_position_embeddings=size.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": size.rope_theta},
        initializer_range=size.init_std,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        eos_token_id=eos_id,
        pad_token_id=pad_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)
