"""Log-probs and entropies of chosen tokens, against plain autograd."""

from __future__ import annotations

import pytest
import torch

from spa.models import forward
from spa.models.forward import token_logprobs
from spa.models.score import prepare
from tests.models.networks import network, random_model


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk", [2**25, 128 * 4])
@pytest.mark.parametrize(("with_logprobs", "with_entropy"), [(True, True), (True, False), (False, True)])
def test_values_and_gradients_are_autograds(monkeypatch, temperature, chunk, with_logprobs, with_entropy) -> None:
    monkeypatch.setitem(forward.CHUNK_LOGITS, "cpu", chunk)
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


@pytest.mark.parametrize(("chunk", "held"), [(2**25, 1), (128 * 4, 0)])
def test_logits_are_kept_only_where_all_fit(monkeypatch, chunk, held) -> None:
    monkeypatch.setitem(forward.CHUNK_LOGITS, "cpu", chunk)
    model = network()
    hidden = torch.randn(50, 32, requires_grad=True)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        token_logprobs(model, hidden, torch.zeros(50, dtype=torch.long), entropy=True)
    assert sum(size == 50 * 128 for size in kept) == held
    assert all(size <= 128 * 32 for size in kept if size != 50 * 128)


@pytest.mark.parametrize("autocast", [False, True])
def test_bfloat16_is_near(autocast) -> None:
    model = network()
    hidden, targets = torch.randn(20, 32, generator=torch.Generator().manual_seed(0)), torch.arange(20)
    plain, _ = token_logprobs(model, hidden, targets)
    (expected,) = torch.autograd.grad(plain.sum(), [model.lm_head.weight])
    if not autocast:
        model, hidden = model.to(torch.bfloat16), hidden.to(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        near, _ = token_logprobs(model, hidden, targets)
    (gradient,) = torch.autograd.grad(near.sum(), [model.lm_head.weight])
    assert near.dtype == torch.float32 and gradient.dtype == model.lm_head.weight.dtype
    torch.testing.assert_close(near, plain, rtol=2e-2, atol=5e-2)
    torch.testing.assert_close(gradient.float(), expected, rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("chunk", [2**25, 128 * 4])
def test_a_head_of_another_kind_gives_the_same(monkeypatch, chunk) -> None:
    class Scaled(torch.nn.Linear):
        pass

    monkeypatch.setitem(forward.CHUNK_LOGITS, "cpu", chunk)
    model = network()
    hidden, targets = torch.randn(20, 32, generator=torch.Generator().manual_seed(0)), torch.arange(20)
    results = []
    for kind in (torch.nn.Linear, Scaled):
        model.lm_head.__class__ = kind
        logprobs, entropy = token_logprobs(model, hidden, targets, temperature=0.7, entropy=True)
        gradient = torch.autograd.grad((logprobs + entropy).sum(), [model.lm_head.weight])
        results.append((logprobs.detach(), entropy.detach(), *gradient))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


SCALED = {"granite": {"logits_scaling": 6.0}, "cohere": {"logit_scale": 0.0625}}


@pytest.mark.parametrize("family", SCALED)
def test_logits_scaled_after_the_head(family: str) -> None:
    model = random_model(family, **SCALED[family])
    ids = torch.arange(3, 30)[None]
    logprobs = (model(input_ids=ids).logits[0, :-1] / 0.7).log_softmax(-1)
    plain = logprobs.gather(-1, ids[0, 1:, None]).squeeze(-1), -(logprobs.exp() * logprobs).sum(-1)
    hidden = model.base_model(input_ids=ids).last_hidden_state[0, :-1]
    got = token_logprobs(model, hidden, ids[0, 1:], temperature=0.7, entropy=True)
    gradients = [torch.autograd.grad(sum(each).sum(), list(model.parameters())) for each in (plain, got)]
    for a, b in zip(got, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_capped_logits_are_refused() -> None:
    model = random_model("gemma3_text", final_logit_softcapping=30.0)
    with pytest.raises(ValueError, match=r"logits are capped \(final_logit_softcapping=30\)"):
        token_logprobs(model, torch.zeros(1, 32), torch.zeros(1, dtype=torch.long))


def test_a_model_that_changes_its_logits_in_its_own_way_is_refused() -> None:
    model = random_model("qwen2_moe").train()
    state = torch.random.get_rng_state()
    prepare(model, "sft", packing=False, compile=False)
    assert model.training and torch.equal(state, torch.random.get_rng_state())
    model.register_forward_hook(lambda module, inputs, output: type(output)(logits=2 * output.logits))
    with pytest.raises(ValueError, match="cannot be trained: something else follows its output head"):
        prepare(model, "sft", packing=False, compile=False)
