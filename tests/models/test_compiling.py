"""torch.compile in the blocks: the same numbers, the same names; what it cannot take is refused."""

from __future__ import annotations

import copy
import shutil

import pytest
import torch

from spa.models.compiling import compile_blocks
from spa.models.packing import enable_packing
from spa.models.score import Chosen, TokenBatch
from tests.models.networks import network


def losses(model) -> tuple[torch.Tensor, list[torch.Tensor]]:
    hidden = []
    for lengths in ((3, 9, 5), (20, 2)):  # another number of tokens is no other graph
        rows = [Chosen(list(range(1, n + 1)), list(range(1, n))) for n in lengths]
        hidden.append(TokenBatch.of(rows, list(range(len(rows))), "cpu", packing=True).hidden(model).square().mean())
    loss = torch.stack(hidden).sum()
    return loss, list(torch.autograd.grad(loss, list(model.model.layers.parameters())))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_loss_and_gradients_are_the_same() -> None:
    model = network("qwen2")
    enable_packing(model)
    plain = copy.deepcopy(model)
    compile_blocks(model, "sft.compile")
    compiled = model.model.layers[0].mlp._compiled_call_impl
    compile_blocks(model, "sft.compile")
    assert model.model.layers[0].mlp._compiled_call_impl is compiled is not None
    assert list(model.state_dict()) == list(plain.state_dict())
    (loss, grads), (expected, others) = losses(model), losses(plain)
    torch.testing.assert_close(loss, expected)
    for a, b in zip(grads, others, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_model_without_such_blocks_is_refused() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2))
    with pytest.raises(ValueError, match=r"ppo\.compile .* GPT2LMHeadModel .* set it to false"):
        compile_blocks(model, "ppo.compile")
