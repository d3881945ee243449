"""An HTTP client for servers that we do not trust: replies are bounded in size, and redirects are not followed."""

from __future__ import annotations

import time
import zlib
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

from spa.common.secrets import redact


class BadReply(Exception):
    """A reply that is not read to its end; the message says why."""


_SENT = ("accept", "accept-encoding", "connection", "content-length", "content-type", "host", "user-agent")
_NOT_KEPT = ("content-encoding", "content-length", "content-type", "transfer-encoding")


def bounded_client(base: type, max_bytes: int, seconds: float, key: str) -> Any:
    """A client of httpx's that reads at most ``max_bytes`` of a body, after decompression, for at most ``seconds``, and that sends
    nothing of the environment (``OPENAI_CUSTOM_HEADERS``, organizations) or of earlier replies (cookies).

    Args:
        base: the class of the client.
        key: of each request; empty for none.
    """

    class Bounded(base):  # type: ignore[misc]
        def send(self, request: Any, **options: Any) -> Any:
            """Raises ``BadReply`` for a body that is too large, too slow or badly compressed."""
            sent = {name: value for name, value in request.headers.items() if name.lower() in _SENT}
            if key:
                sent["Authorization"] = f"Bearer {key}"
            plain = type(request)(
                request.method, request.url, headers=sent, stream=request.stream, extensions=request.extensions
            )
            response = super().send(plain, **options | {"stream": True, "follow_redirects": False})
            try:
                body = _body(response, max_bytes, time.monotonic() + seconds)
            finally:
                response.close()
            headers = [(name, value) for name, value in response.headers.multi_items() if name.lower() not in _NOT_KEPT]
            # The one declared may be no encoding of text.
            headers.append(("Content-Type", "application/json; charset=utf-8"))
            return type(response)(response.status_code, headers=headers, content=body, request=request)

    cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))
    return Bounded(follow_redirects=False, headers={"Accept-Encoding": "gzip"}, cookies=cookies)


def _body(response: Any, max_bytes: int, deadline: float) -> bytes:
    declared = response.headers.get("content-encoding", "identity").strip()
    encoding = declared.lower()
    if encoding not in ("identity", "", "gzip", "x-gzip", "deflate"):
        raise BadReply(f"a reply with the unknown Content-Encoding {redact(declared)[:40]!r}")
    unpack = zlib.decompressobj(47) if encoding not in ("identity", "") else None  # 47: either header
    body = bytearray()
    for piece in response.iter_raw():
        try:
            body += unpack.decompress(piece, max_bytes + 1 - len(body)) if unpack else piece
        except zlib.error:
            raise BadReply("a reply whose compression is damaged") from None
        if len(body) > max_bytes:
            raise BadReply(f"a reply of more than engine.max_reply_bytes={max_bytes}")
        if unpack and unpack.unused_data:
            raise BadReply("a compressed reply that goes on after its end")
        if time.monotonic() > deadline:
            raise BadReply("no complete reply in time")
    if unpack and response.num_bytes_downloaded and not unpack.eof:
        raise BadReply("a compressed reply that was cut off")
    return bytes(body)
