"""A policy ready for rollouts: a model with its tokenizer and engine, or a server. Made once per stage."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from spa.agent.chat import Chat
from spa.agent.conversation import Job, play_jobs
from spa.agent.episode import Episode
from spa.agent.grammar import response_grammar
from spa.agent.lengths import world_model_length
from spa.agent.response import forced_tag
from spa.agent.rollout import OnTurn, rollout
from spa.agent.task import Task
from spa.agent.worlds import World
from spa.common.progress import progress
from spa.config.fields import Precision, Prompt, StateFormat
from spa.config.schema import Config, EngineConfig, SamplingConfig
from spa.engines.base import ChatEngine, Engine
from spa.scale import ranks

_SMALL = 2**26  # bytes of weights
_CHECKED = tuple("01234567")  # user messages after which an engine's log-probs are compared with training's


def local_engine(config: Config) -> EngineConfig | None:
    """The engine of stages that a chat server cannot play: ``config.engine``, or None (transformers) for a server."""
    return None if config.engine.kind == "openai" else config.engine


def make_task(config: Config, *, state_format: StateFormat | None = None, prompt: Prompt | None = None) -> Task:
    """The config's task, with another state format or prompt mode if given. A copy in the other mode states the right length.

    Raises:
        ValueError: as ``Task``.
    """
    env = dataclasses.replace(config.env, state_format=state_format or config.env.state_format)
    agent = dataclasses.replace(config.agent, prompt=prompt or config.agent.prompt)
    task = Task(env, agent, config.sampling.max_tokens)
    if env.response_hint or agent.style != "paper":
        return task
    return dataclasses.replace(task, max_tokens_world_model=world_model_length(task, config))


def sampling_for(task: Task, sampling: SamplingConfig, temperature: float | None = None) -> SamplingConfig:
    """Sampling settings for a task: the token limit of its prompt mode, and another temperature if given."""
    limit = sampling.limit(task.agent.prompt)
    return dataclasses.replace(
        sampling, max_tokens=limit, temperature=sampling.temperature if temperature is None else temperature
    )


def counter(bar: progress | None) -> OnTurn:
    """Shows finished episodes and turns next to a bar."""
    seen: dict[tuple[int, int], int] = {}

    def on_turn(episode: Episode, ended: bool) -> None:
        if bar:
            # A server's episode and a fork's come with all their turns at once.
            key, turns = (episode.group, episode.member), len(episode.turns)
            bar.advance(int(ended), turns=bar.values.get("turns", 0) + turns - seen.get(key, 0))
            seen[key] = turns

    return on_turn


@dataclass(repr=False, eq=False)  # a served one lacks fields
class Policy:
    """``model`` is the torch module being trained; ``engine`` samples with its current weights (vLLM within ``playing``; without
    training it has no module)."""

    model: Any
    tokenizer: Any
    chat: Chat
    engine: Engine
    sampling: SamplingConfig
    max_logprob_diff: float = 0.02

    @classmethod
    def load(
        cls,
        config: Config,
        path: str | None = None,
        *,
        engine: EngineConfig | None = None,
        trained: bool = False,
        precision: Precision = "float32",
    ) -> Policy:
        """Loads ``path`` (default: ``config.model.path``) and sets torch's threads to ``model.threads``.

        Args:
            engine: the engine's settings; None is the transformers engine. For a chat server nothing is loaded and a
                ``ServedPolicy`` is returned.
            trained: the model is trained here, so that vLLM plays only within ``playing``, with a copy of its weights.
            precision: of the matrix products of its training.

        Raises:
            ValueError: the folder has no model or tokenizer, the chat template cannot be used, or the engine lacks its
                package or settings.
        """
        if engine is not None and engine.kind == "openai":
            from spa.engines.openai import OpenAIEngine

            return ServedPolicy(OpenAIEngine(engine), config.sampling)
        from spa.models.folders import resolve_path
        from spa.models.load import load_model, load_tokenizer, set_threads

        set_threads(config.model)
        name = path or config.model.path
        tokenizer = load_tokenizer(name, config.model)
        chat = Chat(tokenizer, forced=forced_tag(config.agent.think))
        if engine is not None and engine.kind == "vllm":
            from spa.engines.vllm import VLLMEngine

            dtype = engine.dtype or config.model.dtype
            model = load_model(config.model, path) if trained else None
            trusted = config.model.trust_remote_code
            vllm = VLLMEngine(resolve_path(name), dtype, engine, trained=trained, trust_remote_code=trusted)
            limit = 1e-3 if dtype == config.model.dtype == "float32" else 0.02
            if ranks.world() > 1 and precision == "bfloat16":
                limit = 0.05  # ranks gather weights in it, so the check's forward pass is rounded, too
            limit = engine.max_logprob_diff or limit
            return cls(model, tokenizer, chat, vllm, config.sampling, limit)
        assert engine is None or engine.kind == "transformers", "an engine that is not made here"
        from spa.engines.transformers import TransformersEngine

        model = load_model(config.model, path)
        return cls(
            model, tokenizer, chat, TransformersEngine(model, tokenizer.pad_token_id or 0, tokenizer), config.sampling
        )

    def close(self) -> None:
        """Frees the engine's resources outside Python (vLLM)."""
        self.engine.close()

    @property
    def exact(self) -> bool:
        """Whether the engine samples with ``model`` itself, not with a copy of its weights."""
        return not hasattr(self.engine, "push")

    @contextmanager
    def playing(self) -> Iterator[dict[str, float]]:
        """Within it the engine plays with the current weights of ``model``, which is not trained meanwhile.

        Yields metrics of the push and its check, where the engine has a copy of the weights. All ranks enter it.

        Raises:
            OutOfStep: its log-probs are not the model's.
        """
        if self.exact or self.model is None:
            with ranks.whole(self.model):
                yield {}
            return
        from spa.engines.agreement import check

        engine: Any = self.engine
        started = time.perf_counter()
        engine.push(self.model)
        contexts = [self.chat.opening(None, text) + self.chat.forced_ids for text in _CHECKED]
        metrics = check(engine, self.model, contexts, self.sampling.temperature, self.max_logprob_diff)
        try:
            yield {**metrics, "time/push_s": time.perf_counter() - started}
        finally:
            engine.sleep()

    def constrain(self, task: Task) -> None:
        """Keeps all further responses to the format of ``task`` (``selfplay.constrained``; transformers engine only).

        Raises:
            ValueError: as ``Constraint`` and ``response_grammar``.
        """
        from spa.engines.constrained import Constraint

        engine: Any = self.engine
        chat, limit = self.chat, sampling_for(task, self.sampling).max_tokens
        engine.constraint = Constraint(
            self.tokenizer,
            chat.encode,
            self.model.config.get_text_config().vocab_size,
            response_grammar(task, chat, limit),
            forced=chat.forced_ids,
            stop_ids=chat.stop_ids,
        )

    @contextmanager
    def constrained(self, task: Task) -> Iterator[None]:
        """``constrain`` for as long as the context lasts. Raises as it does."""
        self.constrain(task)
        engine: Any = self.engine
        try:
            yield
        finally:
            engine.constraint = None

    def play(
        self,
        task: Task,
        worlds: Sequence[World],
        *,
        samples: int,
        seed: int,
        temperature: float | None = None,
        on_turn: OnTurn | None = None,
        skip: Container[tuple[int, int]] = (),
    ) -> list[Episode]:
        """Plays every world ``samples`` times; see ``rollout``. Without ``on_turn`` it shows its own progress."""
        sampling = sampling_for(task, self.sampling, temperature)
        if ranks.world() > 1:
            sampling = dataclasses.replace(sampling, processes=1)  # a fork must not come between ranks
        with progress(len(worlds) * samples, "playing") if on_turn is None else nullcontext() as bar:

            def play(skip: Container[tuple[int, int]]) -> list[Episode]:
                return rollout(
                    self.engine,
                    self.chat,
                    task,
                    worlds,
                    sampling,
                    seed=seed,
                    group_size=samples,
                    on_turn=on_turn or counter(bar),
                    skip=skip,
                )

            return ranks.play_divided(play, skip)

    @property
    def skips(self) -> bool:
        """Whether an unfinished rollout is resumed by playing only what is missing.

        Samples depend on seed, episode and turn, but in another batch sums are rounded differently. A small model therefore plays
        everything again, in seconds, and gives the same bits. vLLM never does.
        """
        if not self.exact:
            return True
        weights = sum(parameter.nbytes for parameter in self.model.parameters()) if self.model is not None else 0
        return weights > _SMALL


class ServedPolicy(Policy):
    """A model behind a chat server: it has no module, tokenizer, chat or engine, and its episodes have no token sequences."""

    def __init__(self, server: ChatEngine, sampling: SamplingConfig) -> None:
        self.model = self.tokenizer = None
        self.server = server
        self.sampling = sampling

    @property
    def skips(self) -> bool:
        return True

    def close(self) -> None:
        pass

    def play(
        self,
        task: Task,
        worlds: Sequence[World],
        *,
        samples: int,
        seed: int,
        temperature: float | None = None,
        on_turn: OnTurn | None = None,
        skip: Container[tuple[int, int]] = (),
    ) -> list[Episode]:
        """Plays every world ``samples`` times; ``on_turn`` is called for each finished episode."""
        jobs = [Job(world, group, member) for group, world in enumerate(worlds) for member in range(samples)]
        jobs = [job for job in jobs if (job.group, job.member) not in skip]
        sampling = sampling_for(task, self.sampling, temperature)
        with progress(len(jobs), "playing") if on_turn is None else nullcontext() as bar:
            report = on_turn or counter(bar)
            return play_jobs(
                self.server, task, jobs, sampling, seed=seed, on_done=lambda episode: report(episode, True)
            )
