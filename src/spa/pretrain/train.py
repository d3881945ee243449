"""``spa pretrain``: makes the built-in tiny model from the synthetic corpus."""

from __future__ import annotations

import math
from dataclasses import field, fields
from pathlib import Path
from typing import Any

import numpy as np
from pydantic.dataclasses import dataclass

from spa.agent.response import opening
from spa.common.progress import progress
from spa.config.fields import STRICT, AboveZero, Count, Flag, NonNegative, Positive
from spa.config.schema import ModelConfig
from spa.pretrain.corpus import WORLDS, Corpus, Document, tokenizer_texts
from spa.pretrain.network import LEAST_VOCABULARY, TinySize, build_model, build_tokenizer


@dataclass(config=STRICT)
class PretrainConfig(TinySize):
    """Settings of the tiny model's pretraining.

    ``start`` is a model to continue from, ``builtin:tiny`` or a folder; its size and tokenizer are kept.
    """

    worlds: dict[str, NonNegative] = field(default_factory=lambda: {"sokoban": 0.4, "frozen_lake": 0.3, "sudoku": 0.3})
    steps: Positive = 2500
    batch_documents: Positive = 64
    lr: AboveZero = 2e-3
    warmup_steps: Count = 100
    weight_decay: NonNegative = 0.01
    unrelated_weight: NonNegative = 0.1  # loss weight of the predictions' bodies, which are random
    vocab_size: Positive = 512
    start: str = ""
    seed: Count = 0
    threads: Count = 0
    measure: Flag = True  # measure the model's abilities on test worlds and write them into its card


_PREDICTION = opening("prediction")


def encode(document: Document, chat: Any, unrelated_weight: float) -> tuple[list[int], list[float]]:
    """Ids of a document and their loss weights (0 for the prompt and the forced tag)."""
    prompt = chat.opening(None, document.user)
    response = chat.encode_response(document.response)
    weights = [0.0] * (len(prompt) + response.num_forced)
    start = document.response.find(_PREDICTION) + len(_PREDICTION) if document.unrelated else 0
    end = start + len(document.unrelated)
    for low, high in response.offsets[response.num_forced :]:
        weights.append(unrelated_weight if start <= low and high <= end else 1.0)
    return [*prompt, *response.ids, chat.closing_ids[0]], [*weights, 1.0]


def pretrain(config: PretrainConfig, out: Path) -> Path:
    """Trains the tiny model and writes it, with its card, to ``out`` (a Hugging Face folder).

    Raises:
        ValueError: an unknown world, or no world at all; too small a vocabulary; a size beside ``start``; divergence.
    """
    import torch

    from spa.agent.chat import Chat
    from spa.common.names import choose
    from spa.models.forward import hidden_states, micro_batches, pad_right, token_logprobs
    from spa.models.load import load_model, load_tokenizer, save_model
    from spa.models.optim import adamw, lr_factor, set_lr

    for name in config.worlds:
        choose("world of the corpus", name, WORLDS)
    if not any(weight > 0 for weight in config.worlds.values()):
        raise ValueError("pretraining needs at least one world with a positive weight, as in worlds.sokoban=1")
    if config.vocab_size < LEAST_VOCABULARY:
        raise ValueError(
            f"vocab_size={config.vocab_size} holds not even all bytes and tags: at least {LEAST_VOCABULARY}"
        )
    sizes = [*(each.name for each in fields(TinySize)), "vocab_size"]
    if config.start and (given := [name for name in sizes if getattr(config, name) != getattr(PretrainConfig(), name)]):
        raise ValueError(f"start={config.start} has a size and a tokenizer of its own: leave out {', '.join(given)}")
    if config.threads:
        torch.set_num_threads(config.threads)
    streams = np.random.SeedSequence(config.seed).spawn(2)
    mixture = list(config.worlds.items())
    if config.start:
        model, tokenizer = load_model(ModelConfig(path=config.start, device="cpu")), load_tokenizer(config.start)
    else:
        model, tokenizer = _new(config, Corpus(np.random.default_rng(streams[0]), mixture))
    chat = Chat(tokenizer)
    corpus = Corpus(np.random.default_rng(streams[1]), mixture)

    optimizer = adamw([(model.parameters(), config.lr)], betas=(0.9, 0.95), weight_decay=config.weight_decay)
    bar = progress(range(config.steps), "pretraining")
    for step in bar:
        set_lr(optimizer, lr_factor(step, warmup=config.warmup_steps, total=config.steps, schedule="cosine"))
        encoded = [encode(corpus.document(), chat, config.unrelated_weight) for _ in range(config.batch_documents)]
        total_weight = sum(sum(weights) for _, weights in encoded)
        loss_sum = 0.0
        for group in micro_batches([len(ids) for ids, _ in encoded], 8192):
            ids_BT = pad_right([encoded[i][0] for i in group])
            weights_BT = torch.zeros(ids_BT.shape)
            for row, i in enumerate(group):
                weights_BT[row, : len(encoded[i][1])] = torch.tensor(encoded[i][1])
            chosen = weights_BT[:, 1:] > 0
            hidden = hidden_states(model, ids_BT)[:, :-1][chosen]
            logprobs, _ = token_logprobs(model, hidden, ids_BT[:, 1:][chosen])
            loss = -(logprobs * weights_BT[:, 1:][chosen]).sum() / total_weight
            loss.backward()
            loss_sum += float(loss.detach())
        if not math.isfinite(loss_sum):
            raise ValueError(f"pretraining diverged at step {step + 1} of {config.steps}: lower lr")
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        bar.post(loss=loss_sum)
    save_model(model, tokenizer, out)
    write_measured_card(config, out, sum(p.numel() for p in model.parameters()))
    return out


def _new(config: PretrainConfig, corpus: Corpus) -> tuple[Any, Any]:
    """A model without any training, and a tokenizer for the corpus."""
    tokenizer = build_tokenizer(tokenizer_texts(corpus, 2000), config.vocab_size)
    ends = {"eos_id": tokenizer.eos_token_id, "pad_id": tokenizer.pad_token_id}
    return build_model(config.vocab_size, config, config.seed, **ends), tokenizer


def write_measured_card(config: PretrainConfig, out: Path, parameters: int) -> None:
    """Measures the model in ``out`` (unless ``measure`` is off) and writes its card."""
    from dataclasses import asdict

    from spa.pretrain.model_card import measure, table, write_card

    records = measure(str(out), {name: w for name, w in config.worlds.items() if w > 0}) if config.measure else []
    changed = {key: value for key, value in asdict(config).items() if value != getattr(PretrainConfig(), key)}
    changed = {key: value for key, value in changed.items() if key not in ("measure", "threads")}
    write_card(out, changed, parameters, records)
    if records:
        print(table(records))
