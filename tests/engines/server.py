"""A chat server that does what a test tells it to, as a process of its own: ``python server.py`` prints its port.

``POST /control`` with ``{"script": [...], "each": [...], "then": ..., "delay": ...}`` forgets all and sets what the requests get:
the i-th request ``script[i]``; after that, the i-th request with the same messages and seed ``each[i]``; after that ``then``.

    answer        a right answer for FrozenLake, chosen by the request's seed
    500, 401, ... an error with that status; "429:2" with Retry-After: 2
    hang:2        an answer after two seconds
    trickle:2     an answer that takes two seconds, byte by byte
    cut           a connection that is closed in the middle of the answer
    text:...      an answer with this text; "length:..." the same, cut off at the limit
    json:...      a body that is this
    html          a page
    newer         as a server that refuses max_tokens and takes max_completion_tokens
    echo:500:...  this status and body, with the request's Authorization header in place of AUTH, its key of TOKEN
    redirect:...  HTTP 307 to this address
    headers:2     headers without end, for two seconds
    size:9        a right answer in a body of at least so many bytes
    bomb:9        the same, compressed
    coded:x:...   a body with the Content-Encoding x
    raw:...       these bytes (Python's escapes) instead of an answer, and the connection is closed

``GET /log`` tells the requests: start, end (seconds), body, authorization, headers. ``GET /peak``: how many were under way at once.
"""

from __future__ import annotations

import gzip
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ACTIONS = ("Up", "Down", "Left", "Right")


class State:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.reset({})

    def reset(self, control: dict[str, Any]) -> None:
        with self.lock:
            self.script = list(control.get("script", []))
            self.each = list(control.get("each", []))
            self.then = control.get("then", "answer")
            self.delay = float(control.get("delay", 0.0))
            self.log: list[dict[str, Any]] = []
            self.asked: dict[str, int] = {}
            self.active = self.peak = 0

    def begin(self, body: dict[str, Any], headers: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        with self.lock:
            entry = {"start": time.monotonic(), "body": body, **headers}
            self.log.append(entry)
            self.active += 1
            self.peak = max(self.peak, self.active)
            if self.script:
                return self.script.pop(0), entry
            key = json.dumps([body.get("messages"), body.get("seed")])
            count = self.asked.get(key, 0)
            self.asked[key] = count + 1
            return self.each[count] if count < len(self.each) else self.then, entry

    def end(self, entry: dict[str, Any]) -> None:
        with self.lock:
            entry["end"] = time.monotonic()
            if any(entry is known for known in self.log):  # else it is of an earlier test
                self.active -= 1


STATE = State()


def right_answer(body: dict[str, Any]) -> str:
    seed = int(body["seed"])
    moves = f"{ACTIONS[seed % 4]} || {ACTIONS[seed // 4 % 4]}"
    text = (
        f"<think><observation>{seed % 97}</observation>go<prediction>√ \\1</prediction></think><answer>{moves}</answer>"
    )
    last = body["messages"][-1]
    return text.removeprefix(last["content"]) if last["role"] == "assistant" else text


def completion(text: str | None, reason: str = "stop") -> bytes:
    message = {"role": "assistant", "content": text}
    return json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": reason}]}).encode()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._send(json.dumps({"/log": STATE.log, "/peak": STATE.peak}[self.path]).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/control":
            STATE.reset(body)
            self._send(b"{}")
            return
        action, entry = STATE.begin(
            body, {"authorization": self.headers.get("Authorization"), "headers": dict(self.headers)}
        )
        try:
            time.sleep(STATE.delay)
            self._act(action, body)
        except OSError:  # the client has gone
            self.close_connection = True
        finally:
            STATE.end(entry)

    def _act(self, action: str, body: dict[str, Any]) -> None:
        name, _, argument = action.partition(":")
        if name.isdigit():
            headers = {"Retry-After": argument} if argument else {}
            error = {"error": {"message": f"status {name}\nand more", "type": "test"}}
            self._send(json.dumps(error).encode(), status=int(name), headers=headers)
        elif name == "newer" and "max_tokens" in body:
            error = {"error": {"message": "Unsupported parameter: use 'max_completion_tokens' instead."}}
            self._send(json.dumps(error).encode(), status=400)
        elif name == "echo":
            status, _, text = argument.partition(":")
            header = self.headers.get("Authorization") or ""
            text = text.replace("AUTH", header).replace("TOKEN", header.partition(" ")[2])
            self._send(text.encode(), status=int(status))
        elif name == "redirect":
            self._send(b"", status=307, headers={"Location": argument})
        elif name in ("size", "bomb"):
            data = completion(right_answer(body)) + b" " * int(argument)
            packed = {"Content-Encoding": "gzip"} if name == "bomb" else {}
            self._send(gzip.compress(data) if packed else data, headers=packed)
        elif name == "coded":
            encoding, _, text = argument.partition(":")
            self._send(text.encode("latin-1"), headers={"Content-Encoding": encoding})
        elif name == "headers":
            self.wfile.write(b"HTTP/1.1 200 OK\r\n")
            for number in range(int(float(argument) / 0.05)):
                self.wfile.write(f"X-Header-{number}: more\r\n".encode())
                time.sleep(0.05)
            self.close_connection = True
        elif name == "raw":
            self.wfile.write(argument.encode("latin-1").decode("unicode_escape").encode("latin-1"))
            self.close_connection = True
        elif name == "html":
            self._send(b"<html><body>Welcome</body></html>", kind="text/html")
        elif name == "json":
            self._send(argument.encode())
        elif name in ("text", "length"):
            self._send(completion(argument or None, "length" if name == "length" else "stop"))
        else:
            data = completion(right_answer(body))
            if name == "hang":
                time.sleep(float(argument))
            if name in ("cut", "trickle"):
                self._send_headers(len(data), "application/json", 200, {})
                pause = 0.0 if name == "cut" else float(argument) / len(data)
                for position in range(len(data) // 2 if name == "cut" else len(data)):
                    self.wfile.write(data[position : position + 1])
                    self.wfile.flush()
                    time.sleep(pause)
                self.close_connection = True
            else:
                self._send(data)

    def _send_headers(self, length: int, kind: str, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {"Content-Type": kind, "Content-Length": str(length), **headers}.items():
            self.send_header(key, value)
        self.end_headers()

    def _send(
        self, data: bytes, kind: str = "application/json", status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        self._send_headers(len(data), kind, status, headers or {})
        self.wfile.write(data)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    server = Server(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
