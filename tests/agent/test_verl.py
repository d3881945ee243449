"""The tasks in verl: exported files, our agent loop on stand-ins of verl's classes, and (``integration``) verl's own worker."""

from __future__ import annotations

import asyncio
import importlib
import sys
import types
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from spa.agent.rollout import rollout
from spa.agent.worlds import World
from spa.cli import main
from spa.config.load import load_config
from spa.config.schema import SamplingConfig
from spa.models.folders import resolve_path
from tests.scripted import CHAT, TOKENIZER, Scripted, lake_task

TEXT = "</think><answer>Up</answer>"
REAL = find_spec("verl") is not None


class Client:
    """verl's LLMServerClient with a server that always writes ``TEXT``; remembers what it was asked."""

    def __init__(self, output: Any = SimpleNamespace) -> None:
        self.output, self.asked = output, []

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> Any:
        self.asked.append((request_id, list(prompt_ids), sampling_params))
        ids = [*CHAT.encode(TEXT), CHAT.closing_ids[0]][: sampling_params["max_tokens"]]
        return self.output(token_ids=ids, log_probs=[-float(i) for i in ids], extra_fields={})


class Base:
    """The signature of verl 0.9's AgentLoopBase, and what we use of it."""

    def __init__(self, trainer_config: Any, server_manager: Any, tokenizer: Any, processor: Any, dataset_cls: Any, data_config: Any, hf_model_type: str | None = None, **kwargs: Any) -> None:  # noqa: E501  # fmt: skip
        self.rollout_config, self.server_manager, self.tokenizer = trainer_config, server_manager, tokenizer


@pytest.fixture
def loop_class(monkeypatch: pytest.MonkeyPatch) -> type:
    module = types.ModuleType("verl.experimental.agent_loop.agent_loop")
    module.AgentLoopBase, module.AgentLoopOutput = Base, SimpleNamespace
    for name in ("verl", "verl.experimental", "verl.experimental.agent_loop"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delitem(sys.modules, "spa.agent.verl_loop", raising=False)
    loaded = importlib.import_module("spa.agent.verl_loop")
    monkeypatch.delitem(sys.modules, "spa.agent.verl_loop")
    return loaded.SpaAgentLoop


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    settings = ["agent.window=0", "agent.style=terse", "sampling.max_tokens=40", "env.max_turns=3"]
    words = ["data", "export-verl", "frozen_lake", *settings, "--train", "4", "--val", "2"]
    assert main([*words, "--out", str(tmp_path / "verl")]) == 0
    return tmp_path / "verl"


def rows(folder: Path, split: str) -> list[dict[str, Any]]:
    return pq.read_table(folder / f"{split}.parquet").to_pylist()


def played(loop_class: type, folder: Path, client: Client, row: dict[str, Any], **limits: int) -> SimpleNamespace:
    lengths = SimpleNamespace(**{"prompt_length": 200, "response_length": 400, **limits})
    given = {"trainer_config": lengths, "server_manager": client, "tokenizer": TOKENIZER, "processor": None}
    config = yaml.safe_load((folder / "agent_loop.yaml").read_text())[0]
    loop = loop_class(**given, dataset_cls=None, data_config=None, tools=None, task_config=config["task_config"])
    sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": True}
    return asyncio.run(loop.run(sampling, **row, raw_prompt=row["prompt"], priority=3))


def test_the_exported_files(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, val = rows(exported, "train"), rows(exported, "val")
    assert (len(train), len(val)) == (4, 2)
    assert not {row["extra_info"]["content"] for row in train} & {row["extra_info"]["content"] for row in val}
    assert train[0]["agent_name"] == "spa" and train[0]["prompt"][-1]["role"] == "user"
    (loop,) = yaml.safe_load((exported / "agent_loop.yaml").read_text())
    assert loop["_target_"] == "spa.agent.verl_loop.SpaAgentLoop"
    assert load_config(loop["task_config"]).sampling.max_tokens == 40
    assert main(["data", "export-verl", "frozen_lake", "--out", str(exported)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert main(["data", "export-verl", "frozen_lake", "agent.window=1", "--out", str(exported / "new")]) == 2
    assert "add agent.window=0" in capsys.readouterr().err
    mixed = ["frozen_lake", "agent.window=0", "curriculum.mixture={frozen_lake: 1, sokoban: 1}"]
    assert main(["data", "export-verl", *mixed, "--out", str(exported / "new")]) == 2
    assert "each world of a mixture or of levels by itself" in capsys.readouterr().err
    few = ["data", "export-verl", "frozen_lake", "agent.window=0", "env.settings.size=2", "--train", "4", "--val", "99"]
    assert main([*few, "--out", str(exported / "few")]) == 2
    assert "asked for): choose larger worlds" in capsys.readouterr().err and not (exported / "few").exists()


def test_validation_worlds_for_verl_are_distinct(tmp_path: Path) -> None:
    lake = ["agent.window=0", "env.settings={size: 3, p: 0.9}", "env.disjoint=content"]
    words = ["data", "export-verl", "frozen_lake", *lake, "--train", "1", "--val", "6", "--out", str(tmp_path / "verl")]
    assert main(words) == 0
    contents = [row["extra_info"]["content"] for row in rows(tmp_path / "verl", "val")]
    assert len(contents) == len(set(contents)) == 6


def test_an_episode_is_the_one_of_our_own_rollout(loop_class: type, exported: Path) -> None:
    client, row = Client(), rows(exported, "train")[0]
    out = played(loop_class, exported, client, row)
    world = World(row["extra_info"]["seed"], row["extra_info"]["content"])
    sampling = SamplingConfig(max_tokens=40)
    (own,) = rollout(Scripted(lambda i: TEXT), CHAT, lake_task(max_turns=3), [world], sampling, seed=0)
    (sequence,) = own.sequences
    start = sequence.mask.index(1)
    assert (out.prompt_ids, out.response_ids) == (sequence.ids[:start], sequence.ids[start:])
    assert out.response_mask == sequence.mask[start:]
    assert out.response_logprobs == sequence.logprobs[start:]
    assert out.reward_score == own.score
    assert out.extra_fields["reward_extra_info"]["acc"] == float(own.success)
    assert len({request for request, _, _ in client.asked}) == 1, "one session, so that its prefix stays cached"
    assert client.asked[0][2]["stop_token_ids"] == sorted(CHAT.stop_ids)


def test_limits_of_lengths(loop_class: type, exported: Path) -> None:
    row = rows(exported, "train")[0]
    short = played(loop_class, exported, Client(), row, response_length=30)
    assert len(short.response_ids) == len(short.response_mask) == 30
    with pytest.raises(ValueError, match=r"data\.max_prompt_length"):
        played(loop_class, exported, Client(), row, prompt_length=3)


def test_a_world_that_fails_is_not_trained_on(loop_class: type, exported: Path, monkeypatch) -> None:
    from spa.envs.frozen_lake.world import FrozenLake

    monkeypatch.setattr(FrozenLake, "step", lambda self, action: 1 / 0)
    out = played(loop_class, exported, Client(), rows(exported, "train")[0])
    assert not any(out.response_mask) and out.reward_score == 0.0


@pytest.mark.integration
@pytest.mark.skipif(not REAL, reason="needs verl")
def test_verls_own_worker_plays(exported: Path, monkeypatch) -> None:
    import numpy as np
    import verl
    from hydra import compose, initialize_config_dir
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
    from verl.protocol import DataProto
    from verl.utils.dataset.rl_dataset import RLHFDataset
    from verl.workers.rollout.replica import TokenOutput

    settings = [
        f"actor_rollout_ref.model.path={resolve_path('builtin:tiny')}",
        f"data.train_files={exported / 'train.parquet'}",
        f"data.val_files={exported / 'val.parquet'}",
        "data.max_prompt_length=200",
        "data.max_response_length=400",
        "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.rollout.calculate_log_probs=true",
        f"actor_rollout_ref.rollout.agent.agent_loop_config_path={exported / 'agent_loop.yaml'}",
    ]
    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
        config = compose("ppo_trainer", settings)
    data = RLHFDataset(str(exported / "train.parquet"), TOKENIZER, config.data)
    items = [data[i] for i in (0, 0, 1)]
    batch = DataProto.from_dict(
        non_tensors={
            name: np.array([item[name] for item in items] + [None], dtype=object)[:-1]
            for name in ("raw_prompt", "extra_info", "agent_name", "data_source", "reward_model", "index")
        }
    )
    batch.non_tensor_batch["priority"] = np.arange(3)
    client = Client(TokenOutput)
    worker = AgentLoopWorker(config, client)
    out = asyncio.run(worker.generate_sequences(batch))
    assert out.batch["responses"].shape == (3, 400)
    mask = out.batch["response_mask"].bool()
    asked = {tuple(ids) for _, ids, _ in client.asked}
    a_turn = len(CHAT.encode(TEXT)) + 1
    assert mask.sum(-1).tolist() == [a_turn * messages // 2 for messages in out.non_tensor_batch["__num_turns__"]]
    whole = out.batch["input_ids"][0][out.batch["attention_mask"][0].bool()].tolist()
    assert any(tuple(whole[: len(context)]) == context for context in asked)
    assert out.batch["rm_scores"].sum(-1).shape == (3,)
    assert set(out.meta_info["reward_extra_keys"]) == {"acc", "world_failed"}
