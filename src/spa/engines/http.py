"""An HTTP client for servers that we do not trust: replies are bounded in size, and redirects are not followed."""

from __future__ import annotations

import time
import zlib
from typing import Any


class BadReply(Exception):
    """A reply that is not read to its end; the message says why."""


def bounded_client(base: type, max_bytes: int, seconds: float) -> Any:
    """A client of httpx's that reads at most ``max_bytes`` of a body, after decompression, for at most ``seconds``.

    Args:
        base: the class of the client.
    """

    class Bounded(base):  # type: ignore[misc]
        def send(self, request: Any, **options: Any) -> Any:
            """Raises ``BadReply`` for a body that is too large, too slow or badly compressed."""
            response = super().send(request, **options | {"stream": True, "follow_redirects": False})
            try:
                body = _body(response, max_bytes, time.monotonic() + seconds)
            finally:
                response.close()
            dropped = ("content-encoding", "content-length", "transfer-encoding")
            headers = [(name, value) for name, value in response.headers.multi_items() if name.lower() not in dropped]
            return type(response)(response.status_code, headers=headers, content=body, request=request)

    return Bounded(follow_redirects=False, headers={"Accept-Encoding": "gzip, deflate"})


def _body(response: Any, max_bytes: int, deadline: float) -> bytes:
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "", "gzip", "deflate"):
        raise BadReply(f"a reply with the unknown Content-Encoding {encoding[:40]!r}")
    unpack = zlib.decompressobj(47) if encoding in ("gzip", "deflate") else None  # 47: either header
    body = bytearray()
    for piece in response.iter_raw():
        try:
            body += unpack.decompress(piece, max_bytes + 1 - len(body)) if unpack else piece
        except zlib.error:
            raise BadReply("a reply whose compression is damaged") from None
        if len(body) > max_bytes:
            raise BadReply(f"a reply of more than engine.max_reply_bytes={max_bytes}")
        if time.monotonic() > deadline:
            raise BadReply("no complete reply in time")
    if unpack and not unpack.eof:
        raise BadReply("a compressed reply that was cut off")
    return bytes(body)
