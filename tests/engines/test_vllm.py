"""The vLLM engine against a stand-in for vLLM's interface, and (marked ``integration``) against vLLM itself."""

from __future__ import annotations

import enum
import json
import os
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spa.agent.policy import Policy
from spa.agent.worlds import World
from spa.cli import main
from spa.config.fields import Precision
from spa.config.schema import EngineConfig, SamplingConfig, SFTConfig, VariantConfig
from spa.engines.agreement import OutOfStep
from spa.engines.base import Completion, Later
from spa.engines.cooling import Cooled
from spa.engines.vllm import VLLMEngine
from spa.models.load import save_model
from spa.models.lora import add_lora
from spa.models.score import Chosen, sum_logprobs
from spa.preflight import check_command
from spa.rl.trainer import train_ppo
from spa.scale import ranks
from tests.scripted import TOKENIZER, lake_task, same, tiny_config

STOP = frozenset({3, 4})
CONTEXTS = [[5, 6, 7], [8], [9, 10], [5, 6, 7]]


class RequestOutputKind(enum.Enum):
    CUMULATIVE = 0
    FINAL_ONLY = 2


@dataclass
class SamplingParams:
    """The arguments of vLLM's class that we use, with its defaults."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int | None = 16
    seed: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    logprobs: int | None = None
    detokenize: bool = True
    stop: list[str] | None = None
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE


@dataclass
class Logprob:
    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class Output:
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]]
    finish_reason: str
    stop_reason: int | str | None = None


@dataclass
class RequestOutput:
    request_id: str
    outputs: list[Output]
    finished: bool = True


class LLMEngine:
    """Writes tokens 3 to 20, at random by the request's seed alone; a step finishes the newest of the open requests."""

    def __init__(self, max_model_len: int | None) -> None:
        self.max_model_len = max_model_len
        self.requests: dict[str, SamplingParams] = {}
        self.asked: list[SamplingParams] = []
        self.most = 0  # open requests

    def add_request(self, request_id: str, prompt: Any, params: SamplingParams) -> str:
        assert request_id not in self.requests
        if self.max_model_len and len(prompt["prompt_token_ids"]) > self.max_model_len:
            raise ValueError("The decoder prompt is too long\nfor the model")
        self.requests[request_id] = params
        self.asked.append(params)
        self.most = max(self.most, len(self.requests))
        return request_id

    def abort_request(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            del self.requests[request_id]

    def step(self) -> list[RequestOutput]:
        request_id, params = self.requests.popitem()
        assert params.max_tokens is not None
        assert params.stop_token_ids is not None
        rng = np.random.default_rng(params.seed)
        tokens: list[int] = []
        while len(tokens) < params.max_tokens and (not tokens or tokens[-1] not in params.stop_token_ids):
            tokens.append(int(rng.integers(3, 21)))
        scores = [{token: Logprob(-float(token)), 1: Logprob(-0.1)} for token in tokens]
        reason = "stop" if tokens[-1] in params.stop_token_ids else "length"
        return [RequestOutput(request_id, [Output(tokens, scores, reason)])]


@dataclass
class LLM:
    model: str
    dtype: str = "auto"
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = 0.9
    max_model_len: int | None = None
    logprobs_mode: str = "raw_logprobs"
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    enforce_eager: bool = False
    use_tqdm_on_load: bool = True
    trust_remote_code: bool = False
    seed: int | None = None
    calls: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.model == "broken":
            raise RuntimeError("no room\nfor the cache")
        self.llm_engine = LLMEngine(self.max_model_len)
        self.in_process = os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0"

    def collective_rpc(self, method: str, kwargs: dict[str, Any]) -> None:
        self.calls.append(method)
        self.weights = dict(kwargs["weights_iterator"])

    def apply_model(self, function: Any) -> None:
        self.calls.append(function.__name__)

    def reset_prefix_cache(self) -> bool:
        self.calls.append("reset_prefix_cache")
        return True


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("vllm")
    module.LLM, module.SamplingParams = LLM, SamplingParams
    module.sampling_params = types.SimpleNamespace(RequestOutputKind=RequestOutputKind)
    monkeypatch.setitem(sys.modules, "vllm", module)


def make(path: str = "org/model", **settings: Any) -> VLLMEngine:
    return VLLMEngine(path, "bfloat16", EngineConfig(kind="vllm", **settings))


def generate(engine: VLLMEngine, contexts: list[list[int]] = CONTEXTS, seed: int = 1, **sampling: Any):
    settings = SamplingConfig(**{"max_tokens": 8, **sampling})
    return engine.generate(contexts, settings, stop_ids=STOP, seed=seed)


def test_settings_reach_vllm(vllm: None) -> None:
    engine = make(tensor_parallel=2, gpu_memory_utilization=0.5, max_model_len=512)
    llm = engine._llm
    assert (llm.model, llm.dtype, llm.tensor_parallel_size) == ("org/model", "bfloat16", 2)
    assert (llm.gpu_memory_utilization, llm.max_model_len, llm.logprobs_mode) == (0.5, 512, "processed_logprobs")
    assert make()._llm.max_model_len is None
    generate(engine, temperature=0.7, top_p=0.9, top_k=5)
    generate(engine)
    first, second = llm.llm_engine.asked[0], llm.llm_engine.asked[-1]
    assert (first.temperature, first.top_p, first.top_k, first.max_tokens) == (0.7, 0.9, 5, 8)
    assert (second.top_p, second.top_k) == (1.0, -1)
    assert (first.stop_token_ids, first.ignore_eos, first.logprobs) == ([3, 4], True, 0)


def test_the_contract(vllm: None) -> None:
    outs = generate(make(), CONTEXTS * 5)
    assert {out.finish_reason for out in outs} == {"stop", "length"}
    for out in outs:
        assert isinstance(out, Completion)
        assert out.logprobs == [-float(token) for token in out.ids]
        assert (out.ids[-1] in STOP) == (out.finish_reason == "stop")
        assert not STOP & set(out.ids[:-1])
        assert len(out.ids) <= 8


def test_every_request_has_its_own_seed(vllm: None) -> None:
    first = generate(make())
    assert first == generate(make())
    assert first != generate(make(), seed=2)
    assert first[0] != first[3]  # the same context twice


@pytest.mark.parametrize(
    ("path", "message"),
    [("broken", "vLLM cannot load broken: no room$"), ("org/model", "vLLM refuses a context: .*too long;")],
)
def test_what_vllm_refuses_is_one_line(vllm: None, path: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        generate(make(path, max_model_len=2))


def test_an_empty_context_is_refused(vllm: None) -> None:
    with pytest.raises(ValueError, match="empty context"):
        generate(make(), [[]])


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    monkeypatch.setattr("spa.engines.base.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'spa-agent\[vllm\]'"):
        make()


def test_closing_shuts_the_engine_down(vllm: None) -> None:
    engine = make()
    down: list[bool] = []
    core = types.SimpleNamespace(shutdown=lambda: down.append(True))
    engine._llm.llm_engine = types.SimpleNamespace(engine_core=core)
    engine.close()
    assert down == [True]
    make().close()


def test_a_player_with_vllm(vllm: None) -> None:
    config = tiny_config()
    config.model.trust_remote_code = True
    policy = Policy.load(config, engine=EngineConfig(kind="vllm"))
    assert policy.model is None
    llm = policy.engine._llm  # type: ignore[attr-defined]
    assert llm.model.endswith("builtin/tiny") and llm.trust_remote_code
    episodes = policy.play(lake_task(), [World(1, "a")], samples=2, seed=3)
    assert [len(e.sequences) for e in episodes] == [1, 1]
    assert episodes[0].turns[0].response.startswith("<think>")
    policy.close()


def test_weights_are_pushed_in_memory(vllm: None) -> None:
    config = tiny_config()
    policy = Policy.load(config, engine=EngineConfig(kind="vllm"), trained=True)
    llm = policy.engine._llm  # type: ignore[attr-defined]
    assert llm.in_process
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in os.environ
    with pytest.raises(AssertionError, match="pushed"):
        policy.play(lake_task(), [World(1, "a")], samples=1, seed=3)
    policy.engine.push(policy.model)  # type: ignore[attr-defined]
    assert llm.calls == ["reload_weights", "_pack_tied_head", "reset_prefix_cache"]
    assert same(llm.weights, policy.model.state_dict())
    assert len(policy.play(lake_task(), [World(1, "a")], samples=2, seed=3)) == 2
    llm.reset_prefix_cache = lambda: False
    with pytest.raises(RuntimeError, match="old weights"):
        policy.engine.push(policy.model)  # type: ignore[attr-defined]
    policy.engine.sleep()  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match="pushed"):
        policy.play(lake_task(), [World(1, "a")], samples=1, seed=3)


def test_adapters_are_pushed_merged(vllm: None) -> None:
    pytest.importorskip("peft")
    policy = Policy.load(tiny_config(), engine=EngineConfig(kind="vllm"), trained=True)
    add_lora(policy.model, SFTConfig(lora_alpha=4), 2)
    names = set(Policy.load(tiny_config()).model.state_dict())
    policy.engine.push(policy.model)  # type: ignore[attr-defined]
    assert set(policy.engine._llm.weights) == names  # type: ignore[attr-defined]


def test_log_probs_that_are_not_the_models_end_the_play(vllm: None) -> None:
    """The stand-in writes what it likes."""
    policy = Policy.load(tiny_config(), engine=EngineConfig(kind="vllm", max_logprob_diff=1e-5), trained=True)
    with pytest.raises(OutOfStep, match=r"engine\.max_logprob_diff=1e-05"), policy.playing():
        pass
    assert Policy.load(tiny_config(), engine=EngineConfig(kind="vllm"), trained=True).max_logprob_diff == 1e-3
    half = EngineConfig(kind="vllm", dtype="bfloat16")
    policy = Policy.load(tiny_config(), engine=half, trained=True)
    assert (policy.max_logprob_diff, policy.engine._llm.dtype) == (0.02, "bfloat16")  # type: ignore[attr-defined]


def test_the_limit_of_ranks_that_gather_weights_in_bfloat16(vllm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_world", 2)

    def limit(precision: Precision, **engine: Any) -> float:
        settings = EngineConfig(kind="vllm", **engine)
        return Policy.load(tiny_config(), engine=settings, trained=True, precision=precision).max_logprob_diff

    assert (limit("bfloat16"), limit("float32")) == (0.05, 1e-3)
    assert limit("bfloat16", max_logprob_diff=0.3) == 0.3


def test_training_names_its_precision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def load(config: Any, path: str, **given: Any) -> Any:
        raise ValueError(given["precision"])

    monkeypatch.setattr(Policy, "load", load)
    config = tiny_config(precision="bfloat16")
    with pytest.raises(ValueError, match="bfloat16"):
        train_ppo(config, VariantConfig(), config.model.path, tmp_path, resume=False, log=lambda *_: None)


def test_several_gpus_for_one_engine_only_without_training(vllm: None, tmp_path: Path) -> None:
    settings = EngineConfig(kind="vllm", tensor_parallel=2)
    with pytest.raises(ValueError, match=r"set engine.tensor_parallel=1"):
        Policy.load(tiny_config(), engine=settings, trained=True)
    config = tiny_config()
    config.engine = settings
    for stage in ("ppo", "run"):
        with pytest.raises(ValueError, match=r"set engine.tensor_parallel=1"):
            check_command(config, stage, [VariantConfig()], tmp_path)
    check_command(config, "eval", [VariantConfig()], tmp_path, "builtin:tiny")


def test_samples_depend_on_session_and_turn_alone(vllm: None) -> None:
    """Sessions played apart, in another order or few at once write the same; a cooled retry is cooler."""

    def play(sessions: list[int], batch_size: int) -> dict[int, list[list[int]]]:
        engine, said = make(), {session: [] for session in sessions}

        def following(session: int, completion: Completion) -> list[int] | None:
            said[session].append(completion.ids)
            return Cooled([5, session + 9], 0.5) if len(said[session]) < 1 + session % 3 else None

        first = {session: [5, session] for session in sessions}
        sampling = SamplingConfig(max_tokens=8, batch_size=batch_size)
        engine.serve(first, sampling, stop_ids=STOP, seed=7, on_completion=following)
        assert engine._llm.llm_engine.most <= batch_size
        assert {params.temperature for params in engine._llm.llm_engine.asked} == {1.0, 0.5}
        return said

    together = play(list(range(1, 9)), 8)
    assert {len(turns) for turns in together.values()} == {1, 2, 3}
    assert together == play(list(range(8, 0, -1)), 3)
    assert together == play([1, 2, 3, 4], 2) | play([5, 6, 7, 8], 2)


def test_contexts_that_come_later_are_awaited_together(vllm: None) -> None:
    """As where worlds are in processes of their own: here each step ends once all three have begun."""
    begun, heard = threading.Barrier(3, timeout=30), list[int]()

    def on_completion(session: int, completion: Completion) -> Later | None:
        heard.append(session)
        ended = heard.count(session) == 2
        return None if ended else Later(pool.submit(begun.wait), lambda _: CONTEXTS[session])

    with ThreadPoolExecutor(3) as pool:
        make().serve(
            dict(enumerate(CONTEXTS[:3])), SamplingConfig(), stop_ids=STOP, seed=1, on_completion=on_completion
        )
    assert sorted(heard) == [0, 0, 1, 1, 2, 2]


def test_an_interrupted_play_leaves_no_request(vllm: None) -> None:
    engine = make()

    def stop(session: int, completion: Completion) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.serve({0: [5], 1: [6]}, SamplingConfig(max_tokens=8), stop_ids=STOP, seed=1, on_completion=stop)
    assert engine._llm.llm_engine.requests == {}


@pytest.fixture(params=["tied", "untied"])
def folder(request: pytest.FixtureRequest, tmp_path) -> str:
    """A Qwen2 of random weights that speaks the tiny model's tokens."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    tied = request.param == "tied"
    config = Qwen2Config(**size, vocab_size=len(TOKENIZER), num_key_value_heads=1, tie_word_embeddings=tied)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(config)
        for parameter in model.parameters():
            parameter.data.mul_(4.0)  # far from uniform
    save_model(model, TOKENIZER, tmp_path / "model")
    return str(tmp_path / "model")


SMALL = {"gpu_memory_utilization": 0.1, "max_model_len": 1024, "enforce_eager": True}


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_vllm_itself(folder: str) -> None:
    """After each of three pushes log-probs are a training forward's, of prefixes that it had cached, too; episodes do not depend on
    which others are played; a push that is skipped is noticed."""
    config = tiny_config()
    config.model.path = folder
    policy = Policy.load(config, engine=EngineConfig(kind="vllm", **SMALL), trained=True)
    worlds = [World(seed, str(seed)) for seed in range(16)]
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        with torch.no_grad():
            for parameter in policy.model.parameters():
                parameter.add_(0.05 * parameter.std() * torch.randn(parameter.shape, generator=generator))
        with policy.playing() as pushed:
            assert pushed["rollout/logprob_diff_max"] < 1e-3
            episodes = policy.play(lake_task(), worlds[:2], samples=2, seed=3)
        for episode in episodes:
            for row in episode.sequences:
                at = [i for i, sampled in enumerate(row.mask) if sampled]
                expected = sum_logprobs(policy.model, [Chosen(row.ids, [i]) for i in at])
                assert np.abs(np.array([row.logprobs[i] for i in at]) - expected).max() < 1e-3
    with policy.playing():
        whole = policy.play(lake_task(), worlds, samples=4, seed=5)
        odd = {(group, member) for group in range(1, 16, 2) for member in range(4)}
        even = {(group, member) for group in range(0, 16, 2) for member in range(4)}
        parts = policy.play(lake_task(), worlds, samples=4, seed=5, skip=odd)
        parts += policy.play(lake_task(), worlds, samples=4, seed=5, skip=even)
    ids = {(e.group, e.member): [s.ids for s in e.sequences] for e in whole}
    assert len(ids) == 64
    assert ids == {(e.group, e.member): [s.ids for s in e.sequences] for e in parts}
    policy.engine._load = lambda model: None  # type: ignore[attr-defined]
    with torch.no_grad():
        policy.model.model.layers[0].mlp.down_proj.weight.mul_(1.1)
    with pytest.raises(OutOfStep), policy.playing():
        pass
    policy.close()


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_a_whole_run_with_vllm(tmp_path) -> None:
    """Self-play, SFT with measurements, PPO and evaluation: the config has one line more."""
    out = tmp_path / "run"
    small = [f"engine.{name}={str(value).lower()}" for name, value in SMALL.items()]
    settings = [
        "name=vllm",
        "variants=[spa]",
        "selfplay.groups=4",
        "selfplay.group_size=2",
        "sft.epochs=1",
        "sft.eval_worlds=2",
    ]
    settings += ["ppo.steps=3", "ppo.groups=2", "ppo.group_size=2", "ppo.val_every=2", "ppo.val_worlds=2"]
    settings += [
        "ppo.rollout_is=token",
        "eval.worlds=4",
        "eval.samples=2",
        "eval.ks=[1,2]",
        "eval.world_model_worlds=2",
        "sampling.max_tokens=120",
    ]
    assert main(["run", "frozen_lake", *settings, "engine=vllm", *small, "--out", str(out)]) == 0
    rows = [json.loads(line) for path in out.rglob("metrics.jsonl") for line in path.read_text().splitlines()]
    differences = [row["rollout/logprob_diff_max"] for row in rows if "rollout/logprob_diff_max" in row]
    assert len(differences) >= 4  # three steps of PPO and the measurement after SFT
    assert max(differences) < 1e-3
    assert any("rollout_corr/rollout_is_mean" in row for row in rows)


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_a_skipped_push_stops_stage_3(tmp_path, monkeypatch) -> None:
    config = tiny_config(steps=4, groups=4, group_size=4, val_every=0)
    config.engine = EngineConfig(kind="vllm", **SMALL)
    load, pushes = VLLMEngine._load, iter([True, True])
    monkeypatch.setattr(VLLMEngine, "_load", lambda self, model: load(self, model) if next(pushes, False) else None)
    rows: list[dict[str, float]] = []
    with pytest.raises(OutOfStep, match=r"engine\.max_logprob_diff"):
        train_ppo(
            config, VariantConfig(), "builtin:tiny", tmp_path, resume=False, log=lambda step, row: rows.append(row)
        )
    assert [row["rollout/logprob_diff_max"] < 1e-3 for row in rows] == [True, True]
