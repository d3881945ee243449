"""Sampling with vLLM in this process: paged attention, continuous batching, a prefix cache; weights are pushed in memory."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from spa.common.errors import first_line
from spa.common.progress import count_tokens
from spa.config.schema import EngineConfig, SamplingConfig
from spa.engines.base import Completion, Engine, Later, OnCompletion, arrived, check_engine, check_finite
from spa.engines.cooling import cooling
from spa.engines.draws import stream
from spa.models.memory import give_back


class VLLMEngine(Engine):
    """Samples from a model folder or hub name, with the weights of the last ``push`` or else those of the folder.

    Every response has its own seed, from the session and the turn, so samples depend neither on batching nor on which process
    plays the session (except for rounding in vLLM's kernels, which may vary with the batch). With top-p or top-k the log-probs
    are of the renormalised distribution that vLLM samples from; otherwise they are as specified in ``Completion``.

    Args:
        path: of the model.
        dtype: of its weights.
        trained: weights will be pushed, the first before it plays. vLLM then runs in this very process, and on CUDA it can
            ``sleep``.
        trust_remote_code: run Python code that the model brings along.

    Raises:
        ValueError: vLLM is not installed or cannot load the model, or several GPUs for one engine that is trained.
    """

    def __init__(
        self, path: str, dtype: str, config: EngineConfig, *, trained: bool = False, trust_remote_code: bool = False
    ) -> None:
        check_engine(config, trained=trained)
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        import torch
        import vllm

        self._api = vllm
        self._joins = torch.distributed.is_initialized()  # the trainer's process group
        world = self._joins and torch.distributed.get_world_size() > 1
        self._sleeps = trained and torch.cuda.is_available()
        self._current = True  # whether its weights are those to play with
        settings: dict[str, Any] = {}
        if self._sleeps:
            settings["enable_sleep_mode"] = True
        if world:  # one engine in every rank
            settings["distributed_executor_backend"] = "external_launcher"
        if not torch.cuda.is_available():
            # A prompt that is read in parts rewinds its request's generator, which torch's for the CPU cannot do.
            settings["enable_chunked_prefill"] = False
        give_back()
        try:
            with _environment(in_process=trained or world):
                self._llm: Any = vllm.LLM(
                    model=path,
                    dtype=dtype,
                    trust_remote_code=trust_remote_code,
                    tensor_parallel_size=config.tensor_parallel,
                    gpu_memory_utilization=config.gpu_memory_utilization,
                    max_model_len=config.max_model_len or None,
                    logprobs_mode="processed_logprobs",  # at the temperature
                    enable_prefix_caching=True,
                    enforce_eager=config.enforce_eager,
                    use_tqdm_on_load=False,
                    seed=0,  # unused: each request has its own seed
                    **settings,
                )
        except (ValueError, RuntimeError, OSError, AssertionError) as error:
            raise ValueError(f"vLLM cannot load {path}: {first_line(error)}") from error
        if trained:
            self.sleep()  # until the first push

    @property
    def context_length(self) -> int | None:
        return getattr(getattr(self._llm.llm_engine, "model_config", None), "max_model_len", None)

    def serve(
        self,
        contexts: Mapping[int, Sequence[int]],
        sampling: SamplingConfig,
        *,
        stop_ids: frozenset[int],
        seed: int,
        on_completion: OnCompletion,
    ) -> None:
        """As ``Engine.serve``, with at most ``sampling.batch_size`` sessions at once.

        Raises:
            ValueError: an empty context or one that vLLM refuses (too long).
            BrokenModel: log-probs that are not finite.
        """
        assert self._current, "the weights have to be pushed before vLLM plays again"
        engine, waiting = self._llm.llm_engine, deque(contexts.items())
        live: dict[str, tuple[int, int]] = {}  # request -> session and turn
        later: list[tuple[tuple[int, int], Later]] = []  # session and turn whose contexts are not there yet

        def ask(session: int, turn: int, context: Sequence[int]) -> None:
            if not context:
                raise ValueError("an empty context cannot be continued")
            request = f"{session}/{turn}"
            params = self._params(sampling, cooling(context), stop_ids, stream(seed, session, turn) >> 1)
            try:
                engine.add_request(request, {"prompt_token_ids": list(context)}, params)
            except ValueError as error:
                raise ValueError(f"vLLM refuses a context: {first_line(error)}; see engine.max_model_len") from error
            live[request] = session, turn

        try:
            while live or waiting or later:
                while waiting and len(live) + len(later) < sampling.batch_size:
                    session, context = waiting.popleft()
                    ask(session, 0, context)
                for (session, turn), context in arrived(later, idle=not live):
                    ask(session, turn, context)
                for output in engine.step() if live else ():
                    session, turn = live.pop(output.request_id)
                    completion = _completion(output.outputs[0], stop_ids)
                    check_finite(sum(completion.logprobs))
                    count_tokens(len(completion.ids))
                    following = on_completion(session, completion)
                    if isinstance(following, Later):
                        later.append(((session, turn + 1), following))
                    elif following is not None:
                        ask(session, turn + 1, following)
        finally:
            if live:
                engine.abort_request(list(live))

    def _params(self, sampling: SamplingConfig, factor: float, stop_ids: frozenset[int], seed: int) -> Any:
        return self._api.SamplingParams(
            temperature=factor * sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k or -1,
            max_tokens=sampling.max_tokens,
            seed=seed,
            stop_token_ids=sorted(stop_ids),
            ignore_eos=True,  # only stop_ids apply; otherwise generation_config.json would add its own
            logprobs=0,  # of the sampled token only
            output_kind=self._api.sampling_params.RequestOutputKind.FINAL_ONLY,
            # Without stop strings no text is needed.
            **(_until(sampling.stop) if sampling.stop else {"detokenize": False}),
        )

    def push(self, model: Any) -> None:
        """Wakes vLLM up with the weights of ``model`` (LoRA merged, shards gathered), whatever it has read with others forgotten.

        All of vLLM's interface for weights is here; ``agreement.check`` tells whether it did what it says.
        """
        if self._sleeps and not self._current:
            give_back()  # vLLM wakes up in memory of the driver's
            self._llm.wake_up(tags=["weights"])
        self._load(model)
        if self._sleeps and not self._current:
            self._llm.wake_up(tags=["kv_cache"])  # not before: old weights' copies and the cache may not fit together
        if self._llm.reset_prefix_cache() is False:  # older versions return nothing
            raise RuntimeError("vLLM kept what it had computed with the old weights: requests are still running")
        self._current = True

    def _load(self, model: Any) -> None:
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": _weights(model)})
        self._llm.apply_model(_pack_tied_head)

    def sleep(self) -> None:
        """Until the next ``push`` the engine cannot be used; on CUDA its weights and cache leave the GPU."""
        if self._sleeps and self._current:
            self._llm.sleep(level=2)
        self._current = False

    def close(self) -> None:
        if self._sleeps and not self._current:
            give_back()
            with suppress(RuntimeError):  # awake, since on CUDA it cannot free what it has unmapped (dev/traps.md)
                self._llm.wake_up()
        shutdown = getattr(getattr(getattr(self._llm, "llm_engine", None), "engine_core", None), "shutdown", None)
        if shutdown:
            with _process_group_kept() if self._joins else nullcontext():
                shutdown()
        self._llm = None
        give_back()


@contextmanager
def _environment(*, in_process: bool) -> Iterator[None]:
    """vLLM's settings for which it has only environment variables."""
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # this process computes, too
    name = "VLLM_ENABLE_V1_MULTIPROCESSING"
    before = os.environ.get(name)
    if in_process:
        os.environ[name] = "0"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before


@contextmanager
def _process_group_kept() -> Iterator[None]:
    """vLLM's shutdown would end the default process group, which the trainer still needs."""
    from torch import distributed

    end = distributed.destroy_process_group
    distributed.destroy_process_group = lambda group=None: None if group is None else end(group)
    try:
        yield
    finally:
        distributed.destroy_process_group = end


def _weights(model: Any) -> Iterator[tuple[str, Any]]:
    """The weights by their names in a checkpoint; those of a sharded model (DTensor) are gathered one by one."""
    from spa.models.lora import has_lora, merged_state

    for name, tensor in (merged_state(model) if has_lora(model) else model.state_dict()).items():
        yield name, tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _pack_tied_head(model: Any) -> None:
    """vLLM 0.32 leaves the packed copy of a head that is tied to the embeddings as it was (dev/traps.md)."""
    head: Any = getattr(model, "lm_head", None)
    if getattr(model.config, "tie_word_embeddings", False) and hasattr(head, "quant_method"):
        head.quant_method.process_weights_after_loading(head)


def _until(strings: Sequence[str]) -> dict[str, Any]:
    # A tag may be a special token.
    return {"stop": list(strings), "include_stop_str_in_output": True, "skip_special_tokens": False}


def _completion(output: Any, stop_ids: frozenset[int]) -> Completion:
    ids = [int(token) for token in output.token_ids]
    logprobs = [float(scores[token].logprob) for token, scores in zip(ids, output.logprobs, strict=True)]
    stopped = (bool(ids) and ids[-1] in stop_ids) or isinstance(output.stop_reason, str)
    return Completion(ids, logprobs, "stop" if stopped else "length")
