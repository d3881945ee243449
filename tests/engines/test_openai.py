"""The chat engine against a real server: mishaps cost time and no episode, and the model is told what rollout would tell it."""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

import spa.engines.openai as engine_module
from spa.agent.cold_start import ColdStart
from spa.agent.conversation import Job, play_jobs
from spa.agent.episode import Episode
from spa.agent.policy import Policy, ServedPolicy
from spa.agent.rollout import rollout
from spa.agent.task import Task
from spa.agent.worlds import World
from spa.config.schema import AgentConfig, Config, EngineConfig, EnvConfig, SamplingConfig
from spa.engines.base import Refused, RequestFailed, ServerError, check_engine
from spa.engines.openai import OpenAIEngine, _retry_after
from tests.agent.test_playing import Broken
from tests.engines.conftest import Server
from tests.scripted import CHAT, TOKENIZER, Scripted, lake_task

pytest.importorskip("openai")

ASK = [{"role": "user", "content": "Where to?"}]
SAMPLING = SamplingConfig(max_tokens=50)


def engine(server: Server, **settings: Any) -> OpenAIEngine:
    values = {"kind": "openai", "base_url": server.url, "model": "m", "concurrency": 4, "timeout": 5.0, **settings}
    return OpenAIEngine(EngineConfig(**values))


def ask(one: OpenAIEngine, seed: int = 5, sampling: SamplingConfig = SAMPLING) -> tuple[str, str]:
    reply = one.reply(ASK, sampling, forced="<think>", seed=seed, stop=threading.Event())
    return reply.text, reply.finish_reason


def jobs(count: int, members: int = 1) -> list[Job]:
    return [Job(World(100 + g, f"w{g}"), g, m) for g in range(count) for m in range(members)]


def play(server: Server, count: int = 4, task: Task | None = None, **settings: Any) -> list[Episode]:
    return play_jobs(engine(server, **settings), task or lake_task(), jobs(count), SAMPLING, seed=1)


# One request


def test_what_is_sent(server: Server) -> None:
    text, reason = ask(engine(server), seed=6)
    assert (text[:20], text[-30:], reason) == (
        "<think><observation>",
        "<answer>Left || Down</answer>"[-30:].rjust(30, ">"),
        "stop",
    )
    (entry,) = server.log
    assert entry["authorization"] is None
    assert entry["body"] == {
        "model": "m",
        "messages": ASK,
        "temperature": 1.0,
        "top_p": 1.0,
        "max_tokens": 50,
        "seed": 6,
    }


def test_a_server_that_names_the_limit_otherwise(server: Server) -> None:
    server.control(then="newer")
    one = engine(server, retries=0)
    assert ask(one)[1] == "stop"
    assert ask(one)[1] == "stop"
    limits = [{name: value for name, value in entry["body"].items() if "tokens" in name} for entry in server.log]
    assert limits == [{"max_tokens": 50}, {"max_completion_tokens": 50}, {"max_completion_tokens": 50}]


def test_the_key_comes_from_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "s3cret")
    ask(engine(server, api_key_env="MY_KEY"))
    assert server.log[0]["authorization"] == "Bearer s3cret"


def test_prefill_begins_the_answer(server: Server) -> None:
    text, _ = ask(engine(server, prefill=True), sampling=replace(SAMPLING, top_k=7))
    body = server.log[0]["body"]
    assert body["messages"] == [*ASK, {"role": "assistant", "content": "<think>"}]
    assert (body["continue_final_message"], body["add_generation_prompt"], body["top_k"]) == (True, False, 7)
    assert text.startswith("<think><observation>")
    server.control(script=["text:<think>echoed</think>"])
    assert ask(engine(server, prefill=True))[0] == "<think>echoed</think>"


def test_prefill_of_a_model_that_was_trained_after_a_part_of_the_tag(server: Server) -> None:
    server.control(script=["text:>echoed</think>", "text:<think>echoed</think>"])
    one = engine(server, prefill=True, prefill_text="<think")
    assert [ask(one)[0] for _ in range(2)] == ["<think>echoed</think>"] * 2
    assert server.log[0]["body"]["messages"][-1] == {"role": "assistant", "content": "<think"}


def test_without_prefill_a_reply_is_taken_as_it_is(server: Server) -> None:
    server.control(script=["text: Left it is.", "length:<think>I wonder"])
    one = engine(server)
    assert ask(one) == (" Left it is.", "stop")
    assert ask(one) == ("<think>I wonder", "length")


def test_a_text_that_no_file_can_hold_is_repaired(server: Server) -> None:
    server.control(script=['json:{"choices": [{"message": {"content": "a\\ud800b √"}, "finish_reason": null}]}'])
    assert ask(engine(server)) == ("a?b √", "stop")


@pytest.mark.parametrize(
    "mishap",
    [
        "500",
        "503",
        "408",
        "409",
        "429",
        "cut",
        "html",
        "json:",
        "json:{",
        "json:3",
        "json:{}",
        "json:[]",
        'json:{"choices": []}',
        'json:{"choices": null}',
        'json:{"choices": [{"message": null}]}',
        "text:",
        "text:  ",
    ],
)
def test_a_mishap_is_tried_again(server: Server, mishap: str) -> None:
    server.control(script=[mishap, mishap])
    assert ask(engine(server))[0].startswith("<think>")
    assert len(server.log) == 3


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_who_says_nothing_is_asked_with_other_seeds_and_then_taken_at_its_word(server: Server, reason: str) -> None:
    """With the same seed a server that honours it says nothing again, and no run would ever end."""
    nothing = {"choices": [{"message": {"content": " "}, "finish_reason": reason}]}
    server.control(script=[f"json:{json.dumps(nothing)}"] * 30)
    one = engine(server, retries=2)
    for turn in range(9):
        assert [part.strip() for part in ask(one, seed=100 * turn)] == ["", reason]
    assert [entry["body"]["seed"] for entry in server.log][:6] == [0, 1, 2, 100, 101, 102]


@pytest.mark.parametrize("reason", ["error", "abort", "MAX_TOKENS", "max_tokens", "content_filter", "tool_calls"])
def test_a_part_of_a_reply_is_not_taken_for_a_whole_one(server: Server, reason: str) -> None:
    part = {"choices": [{"message": {"content": "<think>half"}, "finish_reason": reason}]}
    server.control(script=[f"json:{json.dumps(part)}"])
    if reason == "content_filter":
        with pytest.raises(Refused, match="content_filter"):
            ask(engine(server))
    elif reason in ("error", "abort"):
        assert ask(engine(server))[1] == "stop" and len(server.log) == 2
    else:
        assert ask(engine(server)) == ("<think>half", "stop" if reason == "tool_calls" else "length")


@pytest.mark.parametrize("mishap", ["hang:3.0", "trickle:3.0"])
def test_an_answer_that_takes_too_long_is_tried_again(server: Server, mishap: str) -> None:
    server.control(script=[mishap])
    began = time.monotonic()
    assert ask(engine(server, timeout=0.3))[0].startswith("<think>")
    assert 0.25 < time.monotonic() - began < 2.5
    assert len(server.log) == 2


def test_nobody_listening(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "BACKOFF", 0.0)
    one = OpenAIEngine(EngineConfig(kind="openai", base_url="http://127.0.0.1:9/v1", model="m", retries=1))
    with pytest.raises(RequestFailed, match=r"Connection error.* \(engine\.base_url=http://"):
        ask(one)


def test_retry_after_is_heeded(server: Server) -> None:
    server.control(script=["429:0.3"])
    ask(engine(server))
    first, second = server.log
    assert second["start"] - first["end"] > 0.28
    server.control(script=["503:86400"])
    with pytest.raises(RequestFailed, match="HTTP 503"):  # a day is too long
        ask(engine(server))
    assert len(server.log) == 1


def test_retry_after_as_a_date() -> None:
    assert _retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert _retry_after("Wed, 21 Oct 2950 07:28:00 GMT") > 1e9
    assert [_retry_after(value) for value in (None, "", "soon", "-3", "2.5")] == [0, 0, 0, 0, 2.5]
    assert _retry_after("Mon, 01 Jan 2024 00:00:00 +99999999999999999") == 0.0


def test_waits_grow(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "BACKOFF", 0.08)
    server.control(script=["500", "500"])
    ask(engine(server))
    log = server.log
    first, second = (later["start"] - earlier["end"] for earlier, later in pairwise(log))
    assert first >= 0.04
    assert second >= 0.08


def test_tries_are_counted(server: Server) -> None:
    server.control(then="500")
    with pytest.raises(RequestFailed, match="HTTP 500: status 500"):
        ask(engine(server, retries=2))
    assert len(server.log) == 3


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refusal_is_final_and_says_why(server: Server, status: int) -> None:
    server.control(then=str(status))
    with pytest.raises(ServerError) as caught:
        ask(engine(server))
    assert str(caught.value) == f"the server at {server.url} refused model 'm': HTTP {status}: status {status}"
    assert len(server.log) == 1


def test_a_key_that_is_withdrawn_is_final(server: Server) -> None:
    server.control(script=["answer"], then="401")
    one = engine(server)
    ask(one)
    with pytest.raises(ServerError, match="HTTP 401"):
        ask(one)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base_url": None}, r"engine\.base_url"),
        ({"model": None}, r"engine\.model"),
        ({"base_url": "localhost:8000/v1"}, "must begin with http"),
    ],
)
def test_missing_settings(settings: dict[str, Any], message: str) -> None:
    values = {"kind": "openai", "base_url": "http://x/v1", "model": "m", **settings}
    with pytest.raises(ValueError, match=message):
        OpenAIEngine(EngineConfig(**values))


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "openai", raising=False)
    monkeypatch.setattr("spa.engines.base.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'spa-agent\[openai\]'"):
        OpenAIEngine(EngineConfig(kind="openai", base_url="http://x/v1", model="m"))


@pytest.mark.parametrize(("name", "value"), [("ALL_PROXY", "socks5://127.0.0.1:1"), ("HTTP_PROXY", "foo://bar")])
def test_a_proxy_that_cannot_be_used_is_named(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=r"a proxy of the environment \(ALL_PROXY, .* cannot be used"):
        check_engine(EngineConfig(kind="openai", base_url="http://x/v1", model="m"))


# Episodes


@pytest.mark.parametrize("style", ["terse", "paper"])
@pytest.mark.parametrize("window", [0, 1, 2])
def test_the_server_reads_what_rollout_would_feed(server: Server, window: int, style: str) -> None:
    task = lake_task(window, style)
    (episode,) = play(server, 1, task)
    assert len(episode.turns) > 2
    texts = iter([turn.response.removeprefix("<think>") for turn in episode.turns])
    scripted = Scripted(lambda i: next(texts))
    (expected,) = rollout(scripted, CHAT, task, [jobs(1)[0].world], SAMPLING, seed=0)
    fed = [TOKENIZER.decode(contexts[0]) for contexts in scripted.contexts]
    read = [CHAT._render(entry["body"]["messages"], generate=True) + "<think>" for entry in server.log]
    assert read == fed
    assert episode == replace(expected, sequences=[])


def test_mishaps_do_not_change_the_episodes(server: Server) -> None:
    expected = play(server, 6)
    count = len(server.log)
    server.control(each=["500", "429:0.01", "cut", "html"])
    assert play(server, 6) == expected
    assert len(server.log) == 5 * count
    assert [e.group for e in expected] == list(range(6))
    assert len({t.response for e in expected for t in e.turns}) > 4


def test_a_slow_request_holds_up_nobody(server: Server) -> None:
    server.control(script=["hang:1.5"])
    done: list[int] = []
    play_jobs(
        engine(server, concurrency=2), lake_task(), jobs(5), SAMPLING, seed=1, on_done=lambda e: done.append(e.group)
    )
    assert sorted(done) == list(range(5))
    assert done[-1] in (0, 1)  # one of the first two had the slow request


@pytest.mark.parametrize("workers", [1, 3])
def test_as_many_requests_at_once_as_asked_for(server: Server, workers: int) -> None:
    server.control(delay=0.2)
    play(server, 6, lake_task(max_turns=1), concurrency=workers)
    assert server.peak == workers
    assert len(server.log) == 6


def test_requests_per_minute(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("spa.engines.openai.time", SimpleNamespace(monotonic=lambda: 100.0))
    monkeypatch.setattr("spa.engines.openai._sleep", lambda seconds, stop: waits.append(seconds))
    play(server, 6, lake_task(max_turns=1), requests_per_minute=1200)
    assert sorted(waits) == pytest.approx([0.05 * n for n in range(6)])


def test_a_failed_episode_is_tried_once_more_after_the_others(server: Server) -> None:
    expected = play(server, 3)
    done: list[int] = []
    one = engine(server, retries=1, concurrency=1)
    server.control(script=["500", "500"])
    assert play_jobs(one, lake_task(), jobs(3), SAMPLING, seed=1, on_done=lambda e: done.append(e.group)) == expected
    assert done == [1, 2, 0]


def test_an_episode_that_fails_twice_is_an_error_and_not_handed_on(server: Server) -> None:
    server.control(then="500")
    done: list[Episode] = []
    one = engine(server, retries=0)
    (episode,) = play_jobs(one, lake_task(), jobs(1), SAMPLING, seed=1, on_done=done.append)
    assert (episode.status, episode.success, episode.turns, done) == ("error", False, [], [])
    assert "HTTP 500" in episode.error


@pytest.mark.parametrize("status", ["500", "400"])
def test_a_dead_server_is_given_up(server: Server, status: str) -> None:
    server.control(script=["answer"] * 12, then=status)
    done: list[Episode] = []
    one = engine(server, retries=0, concurrency=1)
    with pytest.raises(ServerError, match="no usable answer to 8 requests in a row") as caught:
        play_jobs(one, lake_task(), jobs(40), SAMPLING, seed=1, on_done=done.append)
    assert server.url in str(caught.value)
    assert f"HTTP {status}" in str(caught.value)
    assert 2 <= len(done) < 12
    assert len(server.log) == 20


@pytest.mark.parametrize("first", [0, 5])
def test_many_refused_conversations_are_no_death(server: Server, first: int) -> None:
    """Not at the start either, nor by being asked again at the end."""
    server.control(script=["400"] * first + ["answer", "400"] * 20, then="500")
    one = engine(server, retries=0, concurrency=1)
    episodes = play_jobs(one, lake_task(max_turns=1), jobs(40), SAMPLING, seed=1)
    assert [episode.status == "error" for episode in episodes] == [True] * first + [False, True] * (
        (40 - first) // 2
    ) + [False] * (first % 2)
    assert len(server.log) == 40


def test_a_refused_world_counts_once_for_its_group(server: Server) -> None:
    server.control(script=["400"] * 14, then="answer")
    episodes = play_jobs(engine(server, concurrency=1), lake_task(max_turns=1), jobs(3, 7), SAMPLING, seed=1)
    assert [episode.status == "error" for episode in episodes] == [True] * 14 + [False] * 7


def test_a_refused_world_counts_once_with_other_examples_too(server: Server) -> None:
    examples = tuple((f"state {i}", "<think>go</think><answer>Up</answer>") for i in range(9))
    task = replace(lake_task(max_turns=1), cold_start=ColdStart(shots=1, examples=examples))
    server.control(script=["400"] * 14, then="answer")
    episodes = play_jobs(engine(server, concurrency=1), task, jobs(3, 7), SAMPLING, seed=1)
    assert [episode.status == "error" for episode in episodes] == [True] * 14 + [False] * 7


def test_a_server_that_refuses_everything_is_given_up(server: Server) -> None:
    server.control(then="400")
    with pytest.raises(ServerError, match=r"no usable answer to 8 requests in a row \(last: HTTP 400: status 400\)"):
        play_jobs(engine(server, concurrency=1), lake_task(), jobs(40), SAMPLING, seed=1)


def test_failures_between_successes_are_no_death(server: Server) -> None:
    server.control(each=["500"], delay=0.0)
    one = engine(server, retries=0, concurrency=1)
    episodes = play_jobs(one, lake_task(max_turns=1), jobs(7), SAMPLING, seed=1)
    assert {e.status for e in episodes} <= {"truncated", "completed"}
    server.control(each=["500"])
    play_jobs(one, lake_task(max_turns=1), jobs(7), SAMPLING, seed=2)


def test_a_broken_world_is_its_own_episodes_error(server: Server) -> None:
    server.control(then="text:<think></think><answer>go</answer>")
    task = Task(EnvConfig(id=f"{Broken.__module__}:Broken", tag="B"), AgentConfig(style="terse"))
    pending = [Job(World(s, str(s)), s, 0) for s in range(4)]
    done: list[int] = []
    got = play_jobs(engine(server), task, pending, SAMPLING, seed=0, on_done=lambda e: done.append(e.group))
    assert [e.status for e in got] == ["completed", "error", "completed", "error"]
    assert sorted(done) == [0, 1, 2, 3]  # they are finished: to play them again would change nothing


def test_a_server_needs_no_model_here(server: Server) -> None:
    cfg = Config(engine=EngineConfig(kind="openai", base_url=server.url, model="m"))
    cfg.model.path = "/nowhere/at/all"
    policy = Policy.load(cfg, engine=cfg.engine)
    assert isinstance(policy, ServedPolicy)
    assert policy.model is None
    episodes = policy.play(lake_task(), [jobs(1)[0].world], samples=3, seed=1, temperature=0.5)
    assert [(e.group, e.member) for e in episodes] == [(0, 0), (0, 1), (0, 2)]
    assert {entry["body"]["temperature"] for entry in server.log} == {0.5}
