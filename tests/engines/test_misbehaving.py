"""Servers that misbehave: each cost a try and some time, none hangs or ends in a traceback."""

from __future__ import annotations

import resource
import time

import pytest

from spa.engines.base import ServerError
from spa.engines.openai import _said
from tests.engines.conftest import Server
from tests.engines.test_openai import SAMPLING, ask, engine, jobs, play, play_jobs
from tests.scripted import lake_task

pytest.importorskip("openai")

OK = "raw:HTTP/1.1 200 OK\\r\\nContent-Type: application/json\\r\\n"
WRONG_TYPES = {
    "content is a number": '{"choices": [{"message": {"content": 3}}]}',
    "content is a list": '{"choices": [{"message": {"content": [{"text": "a"}]}}]}',
    "content is null": '{"choices": [{"message": {"content": null}, "finish_reason": {"a": [1]}}]}',
    "message is a text": '{"choices": [{"message": "a"}]}',
    "choice is a list": '{"choices": [[]]}',
    "choices is an object": '{"choices": {"0": {"message": {"content": "a"}}}}',
    "choices is a number": '{"choices": 1e999}',
    "a number of 5000 digits": '{"choices": ' + "9" * 5000 + "}",
    "lists in lists": "[" * 50_000,
    "objects in objects": '{"choices":' * 5_000 + "1" + "}" * 5_000,
    "a text in quotes": '"choices"',
    "zeros": "\0" * 100,
    "half a character": '{"choices": "\u00e9',
}
MISHAPS = {
    **{status: status for status in ("408", "409", "429", "429:0.01", "500", "502", "503", "504", "520", "599")},
    "a page": "html",
    "cut off": "cut",
    "byte by byte": "trickle:4",
    "late": "hang:3",
    "headers without end": "headers:4",
    "too large": "size:200000",
    "a bomb": "bomb:30000000",
    "no gzip": "coded:gzip:plain text",
    "gzip cut off": "coded:gzip:\x1f\x8b\x08\x00",
    "twice compressed": "coded:gzip, gzip:x",
    "an unknown compression": "coded:br:x",
    "no content": "raw:HTTP/1.1 204 No Content\\r\\n\\r\\n",
    "nothing at all": "raw:",
    "no HTTP": "raw:SSH-2.0-OpenSSH_9.6\\r\\n",
    "a status that is none": "raw:HTTP/1.1 abc OK\\r\\n\\r\\n",
    "a header without colon": OK + "nonsense\\r\\n\\r\\n{}",
    "a length that is none": OK + "Content-Length: -5\\r\\n\\r\\n{}",
    "too short for its length": OK + "Content-Length: 500\\r\\n\\r\\n{}",
    "a chunk that is none": OK + "Transfer-Encoding: chunked\\r\\n\\r\\nzz\\r\\n{}\\r\\n",
    "a chunk that never ends": OK + "Transfer-Encoding: chunked\\r\\n\\r\\nffffff\\r\\n{}",
    "an endless header": OK + "X: " + "x" * 200_000 + "\\r\\n\\r\\n{}",
    "continue for ever": "raw:" + "HTTP/1.1 100 Continue\\r\\n\\r\\n" * 50,
    "a large error": "echo:500:" + "x" * 200_000,
    **{name: f"json:{body}" for name, body in WRONG_TYPES.items()},
}
FINAL = {
    "a redirect to itself": ("redirect:SELF/v1/chat/completions", "redirects to"),
    "a redirect elsewhere": ("redirect:http://127.0.0.1:9/v1/chat/completions", "redirects to http://127.0.0.1:9/"),
    "a redirect to a file": ("redirect:file:///etc/passwd", "redirects to file:///etc/passwd"),
    "a redirect to nowhere": ("raw:HTTP/1.1 302 Found\\r\\nContent-Length: 0\\r\\n\\r\\n", "HTTP 302: no reason given"),
    "not changed": ("raw:HTTP/1.1 304 Not Modified\\r\\n\\r\\n", "HTTP 304"),
    "a refusal nested too deep": ("echo:418:" + '{"error":' * 5_000, "HTTP 418"),
}


@pytest.mark.parametrize("name", MISHAPS)
def test_a_misbehaving_server_costs_a_try(server: Server, name: str) -> None:
    server.control(script=[MISHAPS[name]])
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    text, _ = ask(engine(server, timeout=2.0, max_reply_bytes=100_000))
    assert text.startswith("<think>")
    assert len(server.log) == 2
    assert time.monotonic() - began < 15
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # KiB
    assert grown < 20_000 or name == next(iter(MISHAPS)), "the first one imports the client"


@pytest.mark.parametrize("name", FINAL)
def test_what_cannot_be_mended_is_said_in_a_line(server: Server, name: str) -> None:
    answer, said = FINAL[name]
    server.control(then=answer.replace("SELF", server.root))
    with pytest.raises(ServerError) as caught:
        ask(engine(server, timeout=2.0))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 800
    assert len(server.log) == 1


@pytest.mark.parametrize("status", ["400", "413", "422"])
def test_a_refused_conversation_costs_its_own_episode(server: Server, status: str) -> None:
    server.control(script=["answer", status, "answer"])
    one = engine(server, concurrency=1)
    episodes = play_jobs(one, lake_task(max_turns=1), jobs(3), SAMPLING, seed=1)
    assert [episode.status == "error" for episode in episodes] == [False, True, False]
    assert f"HTTP {status}: status {status}" in episodes[1].error
    assert len(server.log) == 3, "refusals are not retried"


def test_compressed_replies_are_read(server: Server) -> None:
    server.control(then="bomb:50000")
    assert ask(engine(server, max_reply_bytes=100_000))[0].startswith("<think>")
    server.control(then="size:50000")
    assert ask(engine(server, max_reply_bytes=100_000))[0].startswith("<think>")


def test_the_reason_names_the_limit(server: Server) -> None:
    server.control(then="bomb:200000")
    (episode,) = play(server, 1, retries=0, max_reply_bytes=100_000)
    assert episode.status == "error"
    assert "a reply of more than engine.max_reply_bytes=100000" in episode.error


def test_an_episode_has_a_deadline_of_its_own(server: Server) -> None:
    server.control(delay=0.2)
    one = engine(server, episode_timeout=0.1)
    (episode,) = play_jobs(one, lake_task(), jobs(1), SAMPLING, seed=1)
    assert (episode.status, episode.turns) == ("error", [])
    assert "more than engine.episode_timeout=0.1 seconds" in episode.error
    assert len(server.log) == 2  # the first request of both plays


def test_an_error_nested_too_deep_is_text() -> None:
    deep = '{"error":' * 10_000
    assert _said(deep) == deep[:300]


def test_a_reply_in_parts_is_their_text(server: Server) -> None:
    parts = '[{"type": "text", "text": "</think><answer>"}, {"type": "text", "text": "Up</answer>"}]'
    server.control(script=[f'json:{{"choices": [{{"message": {{"content": {parts}}}, "finish_reason": "stop"}}]}}'])
    text, _ = ask(engine(server))
    assert text.endswith("</think><answer>Up</answer>")
    assert len(server.log) == 1
