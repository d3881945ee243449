"""Help for a model that does not know the format: worked examples, resampled responses, a warm-up."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from spa.agent.cold_start import ColdStart
from spa.agent.conversation import Job, converse, play_jobs
from spa.agent.episode import Episode, read_episodes
from spa.agent.policy import Policy
from spa.agent.response import parse_response
from spa.agent.rollout import rollout
from spa.agent.task import Task
from spa.agent.worlds import World, WorldSource, split_of
from spa.cli import main
from spa.config.load import load_config
from spa.config.schema import AgentConfig, SamplingConfig
from spa.data.ground_truth import rejection
from spa.engines.base import Completion, Message, Refused, Reply
from spa.engines.cooling import Cooled, cooled
from spa.evaluate import play as play_module
from spa.runs.record import read_done
from spa.sft import selfplay as selfplay_module
from spa.sft import warmup
from spa.sft.selfplay import check_source, selfplay_task
from spa.sft.warmup import cold_start, random_episodes, unplayed_worlds
from tests.scripted import CHAT, LAKE, Scripted, lake_task, tiny_policy

WORLDS = [World(seed, f"content {seed}") for seed in (3, 4)]
GOOD = "<observation>a</observation>go<prediction>b</prediction></think><answer>Left</answer>"
BAD = "I go left."
EXAMPLES = (("first user", "<think>one</think><answer>Left</answer>"), ("second user", "<think>two</think>"))


def complete(response: str) -> bool:
    return rejection(response) is None


def helped(task: Task, **settings: Any) -> Task:
    return replace(task, cold_start=ColdStart(complete=complete, **settings))


def telling_task(window: int = 1, style: str = "terse") -> Task:
    return Task(replace(LAKE, max_turns=2), AgentConfig(style=style, window=window, prompt="world_model"))


class Recorded(Scripted):
    """Also remembers the temperature and seed of every call, and answers the i-th call with ``texts[i]``."""

    def __init__(self, texts: Sequence[str]) -> None:
        super().__init__(lambda i: "")
        self.texts, self.calls = list(texts), []

    def complete(self, contexts: Any, sampling: SamplingConfig, *, streams: Any, **rest: Any) -> list[Completion]:
        text = self.texts[min(len(self.calls), len(self.texts) - 1)]
        self.text = lambda i: text
        self.calls.append((round(sampling.temperature, 6), streams[0]))
        return super().complete(contexts, sampling, streams=streams, **rest)


class Server:
    """A chat engine that answers the i-th request with ``texts[i]``."""

    workers, name, episode_timeout = 1, "scripted", 60.0

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts, self.asked, self.calls = list(texts), [], []

    def reply(
        self, messages: Sequence[Message], sampling: SamplingConfig, *, forced: str, seed: int, **rest: Any
    ) -> Reply:
        text = self.texts[min(len(self.calls), len(self.texts) - 1)]
        self.asked.append([dict(message) for message in messages])
        self.calls.append((round(sampling.temperature, 6), seed))
        return Reply(forced + text, "stop")


def shown(context: list[int]) -> str:
    return str(CHAT.tokenizer.decode(context))


@pytest.mark.parametrize("window", [0, 1])
@pytest.mark.parametrize("style", ["terse", "paper"])
def test_examples_are_earlier_turns_of_every_context(window: int, style: str) -> None:
    task = helped(telling_task(window, style), shots=2, examples=EXAMPLES)
    engine = Recorded([GOOD])
    (episode,) = rollout(engine, CHAT, task, WORLDS[:1], SamplingConfig(), seed=0)
    assert Episode.from_json(episode.to_json()) == episode
    texts = [message["content"] for message in episode.shots]
    assert sorted(zip(texts[::2], texts[1::2], strict=True)) == sorted(EXAMPLES)
    history = [] if episode.system is None else [{"role": "system", "content": episode.system}]
    messages = [*history, *episode.shots, {"role": "user", "content": episode.turns[0].user}]
    rendered = CHAT.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert shown(engine.contexts[0][0]) == rendered + CHAT.forced
    for (context,) in engine.contexts:
        text = shown(context)
        assert [text.count(user) for user, _ in EXAMPLES] == [1, 1]
        assert text.index("second user") < text.index(episode.turns[0].state)
    for sequence in episode.sequences:
        sampled = [token for token, mask in zip(sequence.ids, sequence.mask, strict=True) if mask]
        assert GOOD in CHAT.decode(sampled)
        assert "one" not in CHAT.decode(sampled)
    # A chat server sees the same messages.
    server = Server([GOOD])
    job = Job(WORLDS[0], 0, 0)
    talked = converse(server, task, job, SamplingConfig(), seed=0, stop=threading.Event())
    assert server.asked[0] == messages
    assert talked.shots == episode.shots
    assert [turn.user for turn in talked.turns] == [turn.user for turn in episode.turns]


def test_an_episode_draws_its_own_examples() -> None:
    examples = tuple((f"user {i}", f"response {i}") for i in range(32))
    help = ColdStart(shots=1, examples=examples)
    assert len({help.draw(seed)[0] for seed in range(8)}) > 4
    assert help.draw(5) == help.draw(5)
    assert ColdStart(examples=examples).draw(0) == []


@pytest.mark.parametrize("same", [True, False])
def test_a_header_is_shown_once_unless_the_worlds_have_their_own(same: bool) -> None:
    task = telling_task(style="paper")
    header = task.header(task.make_env()) if same else "Another world's instruction."
    task = helped(task, shots=2, examples=tuple((f"{header}\nState {i}", "<think>") for i in range(2)))
    engine = Recorded([GOOD])
    (episode,) = rollout(engine, CHAT, task, WORLDS[:1], SamplingConfig(), seed=0)
    for (context,) in engine.contexts:
        assert shown(context).count(header) == (1 if same else 2)
        assert shown(context).count("Your available actions are") == 1
    own = task.header(task.make_env())
    assert all(turn.user.startswith(own) for turn in episode.turns)  # the rows' prompt


def test_a_rejected_response_is_sampled_again_and_cooler() -> None:
    engine = Recorded([BAD, BAD, GOOD])
    task = helped(telling_task(), tries=4)
    (episode,) = rollout(engine, CHAT, task, WORLDS[:1], SamplingConfig(temperature=0.5), seed=0)
    assert [turn.tries for turn in episode.turns] == [3, 1]
    assert [turn.executed for turn in episode.turns] == [["Left"], ["Left"]]
    assert [temperature for temperature, _ in engine.calls] == [0.5, 0.35, 0.245, 0.5]
    assert len({seed for _, seed in engine.calls}) == 4
    assert engine.contexts[0] == engine.contexts[1] == engine.contexts[2]
    assert [sum(sequence.mask) for sequence in episode.sequences] == [len(CHAT.encode(GOOD)) + 1] * 2


def test_the_last_try_is_kept() -> None:
    task = helped(telling_task(), tries=2)
    (episode,) = rollout(Recorded([BAD]), CHAT, task, WORLDS[:1], SamplingConfig(), seed=0)
    assert [(turn.tries, turn.executed, turn.format_ok) for turn in episode.turns] == [(2, [], False)] * 2
    (single,) = rollout(Recorded([BAD]), CHAT, telling_task(), WORLDS[:1], SamplingConfig(), seed=0)
    assert [turn.tries for turn in single.turns] == [1, 1]


def test_only_the_rejected_are_sampled_again() -> None:
    engine = Scripted(lambda i: GOOD if i else BAD)  # the first of several contexts is rejected, and so is a single one
    task = helped(Task(replace(LAKE, max_turns=1), telling_task().agent), tries=3)
    episodes = rollout(engine, CHAT, task, WORLDS, SamplingConfig(), seed=0)
    assert [[turn.tries for turn in episode.turns] for episode in episodes] == [[3], [1]]
    assert [len(contexts) for contexts in engine.contexts] == [2, 1, 1]


class OneTemperature(Server):
    """Like models that take no temperature but 1."""

    def reply(self, messages: Any, sampling: SamplingConfig, **rest: Any) -> Reply:
        if sampling.temperature != 1.0:
            raise Refused("HTTP 400: unsupported temperature")
        return super().reply(messages, sampling, **rest)


def test_where_a_server_refuses_to_be_asked_again_the_reply_stays() -> None:
    task = helped(telling_task(), tries=3)
    server = OneTemperature([BAD, GOOD])
    (episode,) = play_jobs(server, task, [Job(WORLDS[0], 0, 0)], SamplingConfig(temperature=1.0), seed=0)
    assert (episode.status, [turn.executed for turn in episode.turns]) == ("truncated", [[], ["Left"]])
    assert [turn.tries for turn in episode.turns] == [1, 1]
    with pytest.raises(Refused):
        converse(server, task, Job(WORLDS[0], 0, 0), SamplingConfig(temperature=0.5), seed=0, stop=threading.Event())


def test_a_server_is_asked_again_with_a_seed_of_its_own() -> None:
    task = helped(telling_task(), tries=3)
    server = Server([BAD, BAD, GOOD])
    (episode,) = play_jobs(server, task, [Job(WORLDS[0], 0, 0)], SamplingConfig(temperature=1.0), seed=0)
    assert [turn.tries for turn in episode.turns] == [3, 1]
    assert [temperature for temperature, _ in server.calls] == [1.0, 0.7, 0.49, 1.0]
    assert len({seed for _, seed in server.calls}) == 4
    assert server.asked[0] == server.asked[2]


def test_cooled_logits_are_those_of_a_lower_temperature() -> None:
    logits = torch.randn(2, 7, generator=torch.Generator().manual_seed(0))
    got = cooled(logits, [1.0, 0.5])
    torch.testing.assert_close(got, torch.stack([logits[0], logits[1] / 0.5]))
    assert cooled(logits, [1.0, 1.0]) is logits


@pytest.mark.parametrize("batch_size", [1, 8])
def test_the_local_engine_cools_one_session_and_not_the_others(batch_size: int) -> None:
    policy = tiny_policy()
    contexts = {i: CHAT.opening(None, f"state {i}") for i in range(3)}
    sampling = SamplingConfig(max_tokens=12, batch_size=batch_size, processes=1)

    def texts(rejected: int | None, factor: float) -> dict[int, list[Completion]]:
        found: dict[int, list[Completion]] = {i: [] for i in contexts}

        def on_completion(session: int, completion: Completion) -> list[int] | None:
            found[session].append(completion)
            return Cooled(contexts[session], factor) if session == rejected and len(found[session]) == 1 else None

        policy.engine.serve(contexts, sampling, stop_ids=CHAT.stop_ids, seed=1, on_completion=on_completion)
        return found

    plain, again = texts(None, 1.0), texts(1, 1e-6)
    assert [again[i][0].ids for i in contexts] == [plain[i][0].ids for i in contexts]
    assert [len(again[i]) for i in contexts] == [1, 2, 1]
    greedy = policy.engine.generate([contexts[1]], replace(sampling, temperature=0.0), stop_ids=CHAT.stop_ids, seed=1)
    assert again[1][1].ids == greedy[0].ids
    assert texts(1, 1.0)[1][1].ids != plain[1][0].ids  # a try has noise of its own


def test_random_play_is_written_in_the_format_with_true_states() -> None:
    cfg = load_config("frozen_lake", ["agent.style=paper", "selfplay.shots=3", "selfplay.tries=2"])
    task = telling_task(style="paper")
    worlds = WorldSource(task, "selfplay", 2_000_000_000).take(6)
    help = cold_start(cfg, task, worlds)
    assert (help.shots, help.tries, len(help.examples)) == (3, 2, 6)
    for user, response in help.examples:
        assert help.complete(response)
        state = response.partition("<observation>\n")[2].partition("\n</observation>")[0]
        assert f"State:\n{state}\n" in user
    episode = next(random_episodes(task, worlds, 0))
    turn = episode.turns[0]
    assert turn.response.endswith(f"</think> <answer>{' || '.join(turn.executed)}</answer>")


def test_nothing_is_sampled_again_where_nothing_is_filtered_or_sampling_is_greedy() -> None:
    for settings in (["selfplay.filter=false"], ["sampling.temperature=0"]):
        cfg = load_config("frozen_lake", ["selfplay.tries=4", *settings])
        assert cold_start(cfg, lake_task(), []).tries == 1


def test_examples_come_from_worlds_that_are_not_played() -> None:
    task = lake_task()
    source = WorldSource(task, "selfplay", 2_000_000_000)
    played = source.take(20)
    assert not {world.content for world in unplayed_worlds(source, played)} & {world.content for world in played}

    class AllPlayed(WorldSource):
        def take(self, count: int) -> list[World]:
            return played[:1] * count

    with pytest.raises(ValueError, match=r"lower selfplay\.groups"):
        unplayed_worlds(AllPlayed(task, "selfplay", 0), played)


def test_examples_show_actions_that_change_the_world() -> None:
    cfg, task = selfplay_task(load_config("sudoku", ["selfplay.shots=2"]))
    shown = unplayed_worlds(WorldSource(task, "selfplay", 2_000_000_000), [])
    examples = cold_start(cfg, task, shown).examples
    assert len(examples) > 10
    for _, response in examples:
        parsed = parse_response(response, mode="world_model")
        assert parsed.observation != parsed.prediction


def test_few_good_examples_are_joined_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg, task = selfplay_task(load_config("frozen_lake", ["selfplay.shots=2"]))
    worlds = WorldSource(task, "selfplay", 2_000_000_000).take(4)
    played = [next(random_episodes(task, worlds, 0)) for _ in range(6)]
    for episode in played[1:]:
        episode.turns[0].next_state = episode.turns[0].state
    monkeypatch.setattr(warmup, "random_episodes", lambda *given: iter(played))
    assert len(cold_start(cfg, task, worlds).examples) == 1 + 4


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            ["env.id=tests.test_cold_start:Free", "selfplay.policy=random"],
            r"random play \(selfplay\.policy=random\): ",
        ),
        (["env.id=tests.test_cold_start:Free", "selfplay.shots=1"], r"random play \(selfplay\.shots\): "),
        (["agent.think=false"], r"agent\.think=true"),
        (["selfplay.states=belief", "selfplay.policy=random"], "random play writes none"),
    ],
)
def test_a_stage_1_that_could_not_play_is_refused_beforehand(settings: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        check_source(load_config("frozen_lake", ["env.settings={}", *settings]))


class Free:
    """A world of free text."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        return f"say {seed}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return action, 1.0, True, False, {}


def test_a_server_cannot_be_warmed_up() -> None:
    served = ["engine=openai", "engine.base_url=http://host/v1", "engine.model=m", "sampling.stop=[]"]
    with pytest.raises(ValueError, match=r"selfplay\.warmup_rows trains a model here"):
        check_source(load_config("frozen_lake", [*served, "selfplay.warmup_rows=8"]))


ARGUMENTS = ["generate", "frozen_lake", "--quiet", "model.threads=1", "selfplay.groups=4", "selfplay.group_size=2"]
SHOTS = ["selfplay.shots=1", "selfplay.filter=false"]  # the built-in model knows no earlier turns
WARM = ["selfplay.tries=3", "selfplay.warmup_rows=6", "sft.batch_size=3"]


def written(out: Path) -> tuple[Any, ...]:
    folder = out / "selfplay"
    tables = tuple(pq.read_table(folder / f"{name}.parquet").to_pylist() for name in ("train", "val"))
    return *tables, (folder / "episodes.jsonl").read_bytes(), json.loads((folder / "stats.json").read_text())


def test_examples_are_kept_with_the_episode_and_not_in_the_rows(tmp_path: Path) -> None:
    assert main([*ARGUMENTS, *SHOTS, "--out", str(tmp_path)]) == 0
    train, _, _, _ = written(tmp_path)
    episodes = list(read_episodes(tmp_path / "selfplay" / "episodes.jsonl"))
    assert all(len(episode.shots) == 2 for episode in episodes)
    users = {turn.user for episode in episodes for turn in episode.turns}
    for row in train:
        assert [message["content"] in users for message in row["prompt"]] == [True]


@pytest.mark.slow
def test_a_warm_copy_plays_and_a_resumed_run_gives_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(play_module, "CHUNK", 2)
    assert main([*ARGUMENTS, *WARM, "--out", str(tmp_path / "whole")]) == 0
    stats = written(tmp_path / "whole")[-1]
    assert stats["tries"] >= stats["turns"]
    assert not (tmp_path / "whole" / "selfplay" / "warmup").exists()

    loaded: list[str | None] = []
    load, play, calls = Policy.load.__func__, Policy.play, []

    def recorded(cls: Any, config: Any, path: str | None = None, **kwargs: Any) -> Policy:
        loaded.append(path)
        return load(cls, config, path, **kwargs)

    def stop_in_the_second(self: Policy, *args: Any, **kwargs: Any) -> list[Episode]:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return play(self, *args, **kwargs)

    out = tmp_path / "cut"
    monkeypatch.setattr(Policy, "play", stop_in_the_second)
    monkeypatch.setattr(Policy, "load", classmethod(recorded))
    assert main([*ARGUMENTS, *WARM, "--out", str(out)]) == 130
    assert [path and "warmup" in path for path in loaded] == [None, True]
    assert main([*ARGUMENTS, *WARM, "--out", str(out), "--resume"]) == 0
    assert written(out) == written(tmp_path / "whole")


def test_without_help_nothing_is_played_at_random(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(selfplay_module, "unplayed_worlds")
    monkeypatch.delattr(selfplay_module, "warm_up")
    assert main([*ARGUMENTS, "--out", str(tmp_path / "run")]) == 0


def test_worlds_of_the_examples_are_recorded_as_used(tmp_path: Path) -> None:
    assert main([*ARGUMENTS, *SHOTS, "--out", str(tmp_path)]) == 0
    done = read_done(tmp_path / "selfplay")
    played = {episode.content for episode in read_episodes(tmp_path / "selfplay" / "episodes.jsonl")}
    assert done is not None and played < set(done["worlds"]["selfplay"])


def test_self_play_and_its_examples_keep_to_their_split(tmp_path: Path) -> None:
    assert main([*ARGUMENTS, *SHOTS, "env.disjoint=content", "--out", str(tmp_path)]) == 0
    done = read_done(tmp_path / "selfplay")
    assert done is not None and {split_of(key) for key in done["worlds"]["selfplay"]} == {"selfplay"}
