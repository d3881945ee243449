"""Sampling with vLLM in this process: paged attention and continuous batching on CUDA devices."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import numpy as np

from spa.config.schema import EngineConfig, SamplingConfig
from spa.engines.base import Completion, check_engine


class VLLMEngine:
    """Samples from a model folder or hub name with the weights it had at construction.

    Every request has its own seed, so samples do not depend on batching (except for rounding in vLLM's kernels, which may
    vary with the batch). With top-p or top-k the log-probs are of the renormalised distribution that vLLM samples from;
    otherwise they are as specified in ``Completion``.

    Args:
        path: of the model.
        dtype: of its weights.

    Raises:
        ValueError: vLLM is not installed or cannot load the model.
    """

    def __init__(self, path: str, dtype: str, config: EngineConfig) -> None:
        check_engine(config)
        import vllm

        self._api = vllm
        try:
            self._llm: Any = vllm.LLM(
                model=path,
                dtype=dtype,
                tensor_parallel_size=config.tensor_parallel,
                gpu_memory_utilization=config.gpu_memory_utilization,
                max_model_len=config.max_model_len or None,
                logprobs_mode="processed_logprobs",  # at the temperature
                seed=0,  # unused: each request has its own seed
            )
        except (ValueError, RuntimeError, OSError) as error:
            raise ValueError(f"vLLM cannot load {path}: {_first_line(error)}") from error

    def generate(
        self, contexts: Sequence[Sequence[int]], sampling: SamplingConfig, *, stop_ids: frozenset[int], seed: int
    ) -> list[Completion]:
        """One completion per context, in order.

        Raises:
            ValueError: an empty context or one that vLLM refuses (too long), or sampling values out of range.
        """
        if any(not context for context in contexts):
            raise ValueError("an empty context cannot be continued")
        params = [
            self._api.SamplingParams(
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k or -1,
                max_tokens=sampling.max_tokens,
                seed=int(np.random.SeedSequence([seed, row]).generate_state(1)[0]),
                stop_token_ids=sorted(stop_ids),
                ignore_eos=True,  # only stop_ids apply; otherwise generation_config.json would add its own
                logprobs=0,  # of the sampled token only
                # Without stop strings no text is needed.
                **(_until(sampling.stop) if sampling.stop else {"detokenize": False}),
            )
            for row in range(len(contexts))
        ]
        prompts = [{"prompt_token_ids": list(context)} for context in contexts]
        try:
            outputs = self._llm.generate(prompts, params, use_tqdm=False)
        except ValueError as error:
            raise ValueError(f"vLLM refuses a context: {_first_line(error)}; see engine.max_model_len") from error
        return [_completion(output.outputs[0], stop_ids) for output in outputs]

    def close(self) -> None:
        """Frees vLLM's memory; the engine cannot be used afterwards."""
        shutdown = getattr(getattr(getattr(self._llm, "llm_engine", None), "engine_core", None), "shutdown", None)
        if shutdown:
            shutdown()
        self._llm = None
        gc.collect()


def _until(strings: Sequence[str]) -> dict[str, Any]:
    return {"stop": list(strings), "include_stop_str_in_output": True}


def _completion(output: Any, stop_ids: frozenset[int]) -> Completion:
    ids = [int(token) for token in output.token_ids]
    logprobs = [float(scores[token].logprob) for token, scores in zip(ids, output.logprobs, strict=True)]
    stopped = (bool(ids) and ids[-1] in stop_ids) or isinstance(output.stop_reason, str)
    return Completion(ids, logprobs, "stop" if stopped else "length")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
