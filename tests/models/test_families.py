"""Log-probs in training are those of the whole model, whatever its family; packed, too, where packing is accepted."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from transformers import GPTJConfig, GPTNeoXConfig, MambaConfig, PreTrainedConfig

from spa.models.families import check_attention
from spa.models.score import Chosen, batches, prepare, score
from tests.models.networks import random_model

WINDOW = {"sliding_window": 8}
FAMILIES = {
    "qwen2": {},
    "gpt2": {},
    "gpt_neox": {},
    "opt": {"word_embed_proj_dim": 32, "ffn_dim": 48},
    "phi": {},
    "phi3": {},
    "gemma": {},
    "cohere": {"logit_scale": 0.25},
    "granite": {"logits_scaling": 2.0, "embedding_multiplier": 12.0, "residual_multiplier": 0.22},
    "olmo2": {},
    "glm4": {},
    "smollm3": {},
    "starcoder2": {},
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": {"num_experts": 8, "moe_intermediate_size": 16},
    "lfm2": {},
}
UNPACKED = {  # attention to a window, a mask of their own, or a convolution over tokens
    "mistral": WINDOW,
    "gemma3_text": {**WINDOW, "query_pre_attn_scalar": 8},
    "cohere2": {**WINDOW, "logit_scale": 0.25},
    "stablelm": {},
    "nemotron": {},
    "falcon_h1": {
        "mamba_d_ssm": 32,
        "mamba_n_heads": 4,
        "mamba_d_head": 8,
        "mamba_d_state": 8,
        "lm_head_multiplier": 0.5,
    },
}


def sequences() -> list[Chosen]:
    """Rows of unequal length with a common beginning."""
    rng = np.random.default_rng(0)
    beginning = rng.integers(3, 128, 6).tolist()
    rows = [beginning + rng.integers(3, 128, count).tolist() for count in (12, 20, 9, 14)]
    return [Chosen(row, range(6, len(row))) for row in rows]


def scored(model, *, packing: bool) -> dict[int, torch.Tensor]:
    chosen = sequences()
    result: dict[int, torch.Tensor] = {}
    for batch in batches(chosen, 1000, "cpu", packing=packing):
        parts = score(model, batch).logprobs_N.split([len(chosen[i].positions) for i in batch.indices])
        result.update(zip(batch.indices, parts, strict=True))
    return result


@pytest.mark.parametrize(("config", "refused"), [(GPTJConfig(), True), (MambaConfig(), True), (GPTNeoXConfig(), False)])
def test_architectures_without_sdpa_are_refused(config: PreTrainedConfig, refused: bool) -> None:
    with pytest.raises(ValueError, match="no sdpa attention") if refused else nullcontext():
        check_attention(config)


@pytest.mark.parametrize("family", [*FAMILIES, *UNPACKED])
@torch.no_grad()
def test_log_probs_are_the_whole_models(family: str) -> None:
    model = random_model(family, **(FAMILIES | UNPACKED)[family])
    expected = {}
    for number, sequence in enumerate(sequences()):
        logprobs = model(input_ids=torch.tensor([sequence.ids]), use_cache=False).logits[0].log_softmax(-1)
        expected[number] = torch.stack([logprobs[at - 1, sequence.ids[at]] for at in sequence.positions])
    assert min(float(each.min()) for each in expected.values()) < -5.5  # uniform: -4.9
    prepare(model, "ppo", packing=False, compile=False)
    torch.testing.assert_close(scored(model, packing=False), expected, rtol=1e-4, atol=1e-4)
    packed = copy.deepcopy(model)
    if family in UNPACKED:
        with pytest.raises(ValueError, match=r"ppo\.packing=false"):
            prepare(packed, "ppo", packing=True, compile=False)
    else:
        prepare(packed, "ppo", packing=True, compile=False)
        torch.testing.assert_close(scored(packed, packing=True), expected, rtol=1e-4, atol=1e-4)
