"""The vLLM engine against a stand-in for vLLM's interface, and (marked ``integration``) against vLLM itself."""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from spa.agent.policy import Policy
from spa.agent.worlds import World
from spa.config.schema import EngineConfig, SamplingConfig
from spa.engines.base import Completion
from spa.engines.vllm import VLLMEngine
from tests.scripted import CHAT, lake_task, tiny_config

STOP = frozenset({3, 4})
CONTEXTS = [[5, 6, 7], [8], [9, 10], [5, 6, 7]]


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
    outputs: list[Output]


@dataclass
class LLM:
    """Writes tokens 3 to 20, at random by the request's seed alone."""

    model: str
    dtype: str = "auto"
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = 0.9
    max_model_len: int | None = None
    logprobs_mode: str = "raw_logprobs"
    seed: int | None = None
    calls: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.model == "broken":
            raise RuntimeError("no room\nfor the cache")

    def generate(self, prompts: Any, sampling_params: Any = None, *, use_tqdm: bool = True) -> list[RequestOutput]:
        self.calls.append(sampling_params)
        return [self._one(p["prompt_token_ids"], s) for p, s in zip(prompts, sampling_params, strict=True)]

    def _one(self, ids: list[int], params: SamplingParams) -> RequestOutput:
        assert params.max_tokens is not None
        assert params.stop_token_ids is not None
        if self.max_model_len and len(ids) > self.max_model_len:
            raise ValueError(f"The decoder prompt (length {len(ids)}) is too long\nfor the model")
        rng = np.random.default_rng(params.seed)
        tokens: list[int] = []
        while len(tokens) < params.max_tokens and (not tokens or tokens[-1] not in params.stop_token_ids):
            tokens.append(int(rng.integers(3, 21)))
        scores = [{token: Logprob(-float(token)), 1: Logprob(-0.1)} for token in tokens]
        return RequestOutput([Output(tokens, scores, "stop" if tokens[-1] in params.stop_token_ids else "length")])


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("vllm")
    module.LLM, module.SamplingParams = LLM, SamplingParams
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
    first, second = (call[0] for call in llm.calls)
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
    policy = Policy.load(config, engine=EngineConfig(kind="vllm"))
    assert policy.model is None
    assert policy.engine._llm.model.endswith("builtin/tiny")  # type: ignore[attr-defined]
    episodes = policy.play(lake_task(), [World(1, "a")], samples=2, seed=3)
    assert [len(e.sequences) for e in episodes] == [1, 1]
    assert episodes[0].turns[0].response.startswith("<think>")
    policy.close()


def test_training_keeps_its_own_engine(vllm: None) -> None:
    config = tiny_config()
    config.engine.kind = "vllm"
    assert Policy.load(config).model is not None


@pytest.mark.integration
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_vllm_itself() -> None:
    """Log-probs equal those of the training forward; what is sampled does not depend on the batch."""
    import torch

    from spa.models.folders import resolve_path
    from spa.models.load import load_model

    config = tiny_config()
    settings = EngineConfig(kind="vllm", gpu_memory_utilization=0.2, max_model_len=512)
    engine = VLLMEngine(resolve_path("builtin:tiny"), "float32", settings)
    model = load_model(config.model)
    contexts = [CHAT.opening(None, f"_P__\n_O_G\n{i} left\n<think><answer>") + CHAT.forced_ids for i in range(6)]
    sampling = SamplingConfig(max_tokens=30, temperature=0.8)
    outs = engine.generate(contexts, sampling, stop_ids=CHAT.stop_ids, seed=5)
    assert engine.generate(contexts[:1], sampling, stop_ids=CHAT.stop_ids, seed=5)[0].ids == outs[0].ids
    for context, out in zip(contexts, outs, strict=True):
        assert (out.ids[-1] in CHAT.stop_ids) == (out.finish_reason == "stop")
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*context, *out.ids]])).logits[0, len(context) - 1 : -1]
        expected = torch.log_softmax(logits / 0.8, -1).gather(-1, torch.tensor(out.ids)[:, None]).squeeze(-1)
        assert np.abs(np.array(out.logprobs) - expected.numpy()).max() < 1e-3
    engine.close()
