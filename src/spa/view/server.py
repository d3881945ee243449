"""``spa view``: the pages over HTTP. Reads only, runs nothing, and takes no path from an address."""

from __future__ import annotations

import hashlib
import re
import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address
from pathlib import Path

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from spa.view import pages
from spa.view.index import Index, RunEntry

_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9.]+))(?::[0-9]+)?")
_KEPT = 8  # rendered reports
_HEADERS = {
    "Cache-Control": "no-cache",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
# A report has its own policy inside; this adds who may frame it, which a page cannot say.
_REPORT_POLICY = "frame-ancestors 'self'; base-uri 'none'; form-action 'none'"


class _KnownHosts(TrustedHostMiddleware):
    """Refuses a ``Host`` that is neither allowed nor an address: a DNS name may have been rebound to this machine."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        to_address = scope["type"] == "http" and is_address(Headers(scope=scope).get("host", ""))
        await (self.app if to_address else super().__call__)(scope, receive, send)


def is_address(host: str) -> bool:
    """Whether a ``Host`` header names an IP address, with or without a port."""
    named = _ADDRESS.fullmatch(host)
    try:
        return named is not None and bool(ip_address(named[1] or named[2]))
    except ValueError:
        return False


def make_app(folders: Sequence[Path], host: str = "127.0.0.1") -> Starlette:
    """The application for the runs under ``folders``.

    Args:
        host: the address that it listens on. A request must name ``localhost`` or ``127.0.0.1`` as its ``Host``, and where
            others can reach it also ``host``, this machine's name or any IP address.

    Raises:
        ValueError: a folder does not exist.
    """
    index = Index(folders)
    reports: OrderedDict[tuple[str, str], str] = OrderedDict()

    def report_of(entry: RunEntry) -> str:
        """The page that ``spa report`` would write now."""
        from spa.report.collect import collect  # imported here, so that the list appears within a second
        from spa.report.html import render_report

        if (page := reports.get((entry.key, entry.tag))) is None:
            page = render_report(collect(entry.path))
            reports[entry.key, entry.tag] = page
            while len(reports) > _KEPT:
                reports.popitem(last=False)
        return page

    def home(request: Request) -> Response:
        return _answer(request, pages.home(index.entries()), pages.POLICY)

    def listing(request: Request) -> Response:
        return _answer(request, pages.listing(index.entries()), pages.POLICY)

    def of_run(answer: Callable[[Request, RunEntry], Response]) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:
            entry = index.get(request.path_params["key"])
            return answer(request, entry) if entry else _message("No such run.", 404)

        return endpoint

    def run(request: Request, entry: RunEntry) -> Response:
        return _answer(request, pages.run(entry), pages.POLICY)

    def status(request: Request, entry: RunEntry) -> Response:
        return _answer(request, pages.status(entry), pages.POLICY)

    def report(request: Request, entry: RunEntry) -> Response:
        try:
            return _answer(request, report_of(entry), _REPORT_POLICY)
        except (ValueError, OSError) as error:
            return _message(f"{entry.title} cannot be shown: {error}", 500)

    def compare(request: Request) -> Response:
        from spa.report.compare import compare_runs

        chosen = [index.get(key) for key in request.query_params.getlist("run")]
        try:
            comparison = compare_runs([entry.path for entry in chosen if entry])
            return _answer(request, comparison.html(), _REPORT_POLICY)
        except (ValueError, OSError) as error:
            return _message(f"These runs cannot be compared: {error}", 400)

    routes = {
        "/": home,
        "/list": listing,
        "/compare": compare,
        "/run/{key}": of_run(run),
        "/run/{key}/status": of_run(status),
        "/run/{key}/report": of_run(report),
    }
    public = host not in ("localhost", "127.0.0.1")
    allowed = ["localhost", "127.0.0.1", *([host, socket.gethostname()] if public else [])]
    return Starlette(
        routes=[Route(path, endpoint, methods=["GET"]) for path, endpoint in routes.items()],
        middleware=[
            Middleware(_KnownHosts if public else TrustedHostMiddleware, allowed_hosts=allowed, www_redirect=False)
        ],
        exception_handlers={404: _not_found},
    )


def _answer(request: Request, html: str, policy: str) -> Response:
    # A model can write lone surrogates, which UTF-8 cannot encode.
    body = html.encode("utf-8", "replace")
    tag = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
    headers = {**_HEADERS, "Content-Security-Policy": policy, "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return HTMLResponse(body, headers=headers)


def _message(text: str, code: int) -> Response:
    return HTMLResponse(pages.message(text), code, headers={**_HEADERS, "Content-Security-Policy": pages.POLICY})


def _not_found(request: Request, error: Exception) -> Response | Awaitable[Response]:
    return _message("No such page.", 404)


def serve(folders: Sequence[Path], host: str, port: int) -> None:
    """Serves until Ctrl-C.

    Raises:
        ValueError: a folder does not exist, or the address cannot be used.
    """
    import uvicorn

    app = make_app(folders, host)
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ValueError(f"cannot listen on {host}:{port} ({error.strerror}): give another --port") from error
    with listener:
        at = listener.getsockname()[1]
        name = f"[{host}]" if ":" in host else host
        print(f"Runs in {', '.join(map(str, folders))}: http://{name}:{at}  (Ctrl-C ends it)", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listener])
