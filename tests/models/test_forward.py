"""Log-probs and entropies of chosen tokens, against plain autograd."""

from __future__ import annotations

import pytest
import torch

from spa.models import forward
from spa.models.forward import token_logprobs
from tests.models.networks import network


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk", [2**25, 128 * 4])
@pytest.mark.parametrize(("with_logprobs", "with_entropy"), [(True, True), (True, False), (False, True)])
def test_values_and_gradients_are_autograds(monkeypatch, temperature, chunk, with_logprobs, with_entropy) -> None:
    monkeypatch.setattr(forward, "CHUNK_LOGITS", chunk)
    model = network("qwen2")
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(10, 32, generator=generator, requires_grad=True)
    targets = torch.randint(0, 128, (10,), generator=generator)
    weights = torch.randn(2, 10, generator=generator) * torch.tensor([[with_logprobs], [with_entropy]])

    def gradients(logprobs, entropy):
        parts = ([weights[0] * logprobs] if with_logprobs else []) + ([weights[1] * entropy] if with_entropy else [])
        return torch.autograd.grad(torch.stack(parts).sum(), [hidden, model.lm_head.weight])

    logits = model.lm_head(hidden) / temperature
    all_logprobs = logits.log_softmax(-1)
    plain = all_logprobs[torch.arange(10), targets], -(all_logprobs.exp() * all_logprobs).sum(-1)
    got = token_logprobs(model, hidden, targets, temperature=temperature, entropy=True)
    for a, b in zip(got, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    for a, b in zip(gradients(*got), gradients(*plain), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_no_token_at_all() -> None:
    logprobs, entropy = token_logprobs(network(), torch.zeros(0, 32), torch.zeros(0, dtype=torch.long), entropy=True)
    assert logprobs.shape == entropy.shape == (0,)


def test_nothing_but_the_logits_is_kept() -> None:
    model = network()
    hidden = torch.randn(50, 32, requires_grad=True)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        token_logprobs(model, hidden, torch.zeros(50, dtype=torch.long), entropy=True)
    assert sum(size == 50 * 128 for size in kept) == 1
