"""The estimate of stage 3's memory: its parts, and what the packaged models need."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from spa.config.load import load_config, load_variant
from spa.dry_run import plan
from spa.models.load import load_tokenizer
from spa.models.memory import GIB, count_parameters, estimate_training
from spa.rl.memory import PROMPT, memory_estimate
from tests.models.networks import BIG, network


@pytest.fixture
def small(tmp_path: Path) -> str:
    network("qwen2", max_position_embeddings=4096).config.save_pretrained(tmp_path)
    return str(tmp_path)


def estimated(path: str, *settings: str):
    return memory_estimate(load_config("sokoban", [f"model.path={path}", *settings]), "cpu", 1, local_only=True)


def test_weights_and_adams_states_of_actor_critic_and_reference(small: str) -> None:
    parameters = count_parameters(network("qwen2").config)
    assert estimated(small, "ppo.critic=head").states == 3 * 4 * parameters
    both = estimated(small, "ppo.critic=model")
    assert both.states == 2 * 3 * 4 * parameters
    assert both.gradients == 2 * 4 * parameters
    judged = estimated(small, "ppo.critic=model", "ppo.kl_loss_coef=0.1")
    assert judged.states == both.states + 4 * parameters
    assert estimated(small, "algorithm=grpo", "ppo.critic=model", "ppo.kl_loss_coef=0").states == 3 * 4 * parameters
    adapted = estimated(small, "ppo.critic=head", "ppo.lora_rank=2", "ppo.kl_loss_coef=0.1")
    assert adapted.states < 1.6 * 4 * parameters, "the reference is the actor without its adapters"


def test_one_networks_activations_at_a_time(small: str) -> None:
    one, two = (estimated(small, f"ppo.critic={kind}", "ppo.micro_batch_tokens=1000") for kind in ("head", "model"))
    alone = estimate_training(
        network("qwen2").config,
        tokens=1000,
        scored=1000,
        weight_bytes=4,
        compute_bytes=4,
        checkpointing=False,
        lora_rank=0,
    )
    assert one.activations == alone.activations + alone.logits + alone.fragmentation
    assert two.activations == one.activations + alone.fragmentation  # what the allocator lost to each stays lost
    assert two.total == two.process + two.states + two.gradients + two.activations


def test_keys_and_values_of_a_rollout(small: str) -> None:
    a_token = 2 * 2 * 2 * 8 * 4  # keys and values, layers, heads, width, bytes
    settings = ["sampling.max_tokens=100", "ppo.groups=4", "ppo.group_size=8", "env.max_turns=5"]
    assert estimated(small, *settings, "agent.window=0").rollout == 33 * 5 * (PROMPT + 100) * a_token
    assert estimated(small, *settings, "agent.window=1").rollout == 33 * (PROMPT + 100) * a_token
    assert (
        estimated(small, *settings, "agent.window=1", "sampling.batch_size=8").rollout == 9 * (PROMPT + 100) * a_token
    )


def test_a_long_row_has_a_pass_of_its_own_however_few_tokens_a_pass_is_to_have(small: str) -> None:
    settings = ["sampling.max_tokens=100", "env.max_turns=5", "ppo.critic=head"]
    few, as_many, long = (
        estimated(small, *settings, f"ppo.micro_batch_tokens={tokens}", f"agent.window={window}").activations
        for tokens, window in ((64, 1), (PROMPT + 100, 1), (64, 5))
    )
    assert few == as_many < long
    # As many as the model can attend to.
    beyond, all_of_it = (estimated(small, *settings, f"env.max_turns={turns}", "agent.window=0") for turns in (50, 7))
    assert beyond.row == all_of_it.row > estimated(small, *settings, "agent.window=0").row


def test_the_packaged_models_fit_where_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spa.rl.cost.time_estimates", lambda *_: [])  # bfloat16 products take seconds to time
    BIG.save_pretrained(tmp_path)
    load_tokenizer("builtin:tiny").save_pretrained(tmp_path)
    save_file({"weight": torch.zeros(1)}, str(tmp_path / "model.safetensors"))  # sizes are those of the config
    full, adapted = (
        load_config("sokoban", [f"model={name}", f"model.path={tmp_path}"])
        for name in ("qwen2.5-1.5b", "qwen2.5-1.5b-lora")
    )
    assert 45 * GIB < memory_estimate(full, "cpu", 1, local_only=True).total < 60 * GIB
    need = memory_estimate(adapted, "cpu", 1, local_only=True)
    assert max(need.total, need.states + need.rollout) < 20 * GIB
    lines = plan(adapted, "run", [load_variant("vanilla"), load_variant("spa")])
    assert sum(line.startswith("ppo memory: at most about") for line in lines) == 1
    sft = next(line for line in lines if line.startswith("sft memory"))
    assert float(sft.split("about ")[1].split(" GiB")[0]) < 20
