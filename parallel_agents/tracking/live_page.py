"""Serve run folders as a live page: `with LivePage(views) as page: page.address`.

The server reads the files of the runs, never the runs themselves, and only while somebody looks. It answers GET alone,
on the loopback address unless told otherwise, and serves nothing but the assets of the page, descriptions of the runs
(`RunView`) and their recorded episodes. Browsers get updates as server-sent events, at most one a second.

To guard against other web pages in the same browser, the Host header must name this server (DNS rebinding), and the
page's Content-Security-Policy allows no script, style or request but its own. Beyond loopback a token is required.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.files import plain
from parallel_agents.tracking.run_view import RunView, compare_runs, open_views

DEFAULT_PORT = 6160
_POLL = 1.0
"""Seconds between two looks at the files, and so between two documents, however many look."""
_SECONDS_PER_READ, _SECONDS_BETWEEN_READS = 0.15, 0.3
"""Seconds of reading a long file at a time, and of rest in between, so that it does not keep viewers waiting."""
_SEND_TIMEOUT = 10.0
"""Seconds that a reader may take for one answer, before its connection is closed."""
_MAX_CONNECTIONS = 64
_MAX_DRAINED_BYTES = 16 * 2**20
_TYPES = {
    "js": "text/javascript",
    "css": "text/css",
    "html": "text/html",
    "gif": "image/gif",
    "json": "application/json",
}
ASSETS = ("uplot.min.js", "uplot.min.css", "page.js", "page.css")
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def read_asset(name: str) -> bytes:
    """Return a file of the page."""
    return (resources.files("parallel_agents.tracking") / "page" / name).read_bytes()


class _Hub:
    """Refreshes the views while somebody looks, and makes each document once for all who want the same."""

    def __init__(self, views: Sequence[RunView]) -> None:
        self.views = list(views)
        self._changed = threading.Condition()
        self._reading = threading.Lock()
        self._version = 0
        self._viewers = 0
        self._closed = False
        self._cache: dict[tuple[int | None, int | None], tuple[int, bytes]] = {}
        self._thread = threading.Thread(target=self._poll, name="page-reader", daemon=True)
        self._thread.start()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout=10.0)
        for view in self.views:
            view.close()

    @contextmanager
    def look(self) -> Iterator[None]:
        """Count a viewer: nothing is read without any. The first one finds what is new read."""
        with self._changed:
            self._viewers += 1
            first = self._viewers == 1
            self._changed.notify_all()
        try:
            if first:
                self.refresh()
            yield
        finally:
            with self._changed:
                self._viewers -= 1

    def wait(self, version: int, seconds: float) -> int:
        """Wait for a version other than this one; return the newest, or -1 when the server closes."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._version != version, seconds)
            return -1 if self._closed else self._version

    def document(self, run: int | None, agent: int | None) -> bytes:
        """Return what the page draws, as JSON: one run, or all of them side by side."""
        run = run if run is not None and run < len(self.views) else 0 if len(self.views) == 1 else None
        with self._reading:
            found = self._cache.get((run, agent))
            if found is None or found[0] != self._version:
                found = self._version, _encode(self._describe(run, agent))
                if len(self._cache) > 32:
                    self._cache.clear()
                self._cache[run, agent] = found
            return found[1]

    def _describe(self, run: int | None, agent: int | None) -> dict[str, Any]:
        names = [[str(k), f"{view.name} ({view.status})"] for k, view in enumerate(self.views)]
        runs = [["", "all side by side"], *names] if len(names) > 1 else names
        head = {"runs": runs, "run": "" if run is None else str(run), "agents": [], "agent": ""}
        again = "parallel-agents watch " + " ".join(str(view.path) for view in self.views[:5])
        if run is None:
            notices = [f"{view.name}: {notice}" for view in self.views for notice in view.notices()]
            return {**head, "title": f"{len(self.views)} runs", "sections": compare_runs(self.views), "again": again,
                    "notices": notices[:20]}  # fmt: skip
        view = self.views[run]
        agents = view.agent_names()
        if agent is not None and agent < len(agents):
            head["agent"] = str(agent)
        if 1 < len(agents) <= 1000:
            head["agents"] = [["", "all"], *([str(n), name] for n, name in enumerate(agents))]
        sections = view.sections(agent)
        for section in sections:
            for panel in section["panels"]:
                if panel["kind"] == "image":
                    panel["address"] = f"/pictures/{run}/"
        return {**head, "title": view.name, "sections": sections, "notices": view.notices()[:20], "again": again,
                "footer": str(view.path)}  # fmt: skip

    def refresh(self) -> None:
        """Read what is new in all views."""
        with self._reading:
            changed = [view.refresh(_SECONDS_PER_READ) for view in self.views]
        if any(changed):
            with self._changed:
                self._version += 1
                self._changed.notify_all()

    def _poll(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._viewers > 0)
                if self._closed:
                    return
                complete = all(view.complete for view in self.views)
                self._changed.wait_for(lambda: self._closed, _POLL if complete else _SECONDS_BETWEEN_READS)
            self.refresh()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 32

    def __init__(self, address: tuple[str, int], hub: _Hub, token: str | None) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.hub, self.token = hub, token
        self._slots = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        super().__init__(address, _Handler)

    @cached_property
    def hosts(self) -> set[str]:
        """What a Host header may say."""
        name, port = self.server_address[:2]
        return {f"{host}:{port}" for host in ("127.0.0.1", "localhost", "[::1]", str(name))}

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a reader that went away is no fault of ours
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "parallel_agents"
    sys_version = ""
    timeout = _SEND_TIMEOUT

    def do_GET(self) -> None:
        """Answer a request, after checking who asks."""
        try:
            parts = urlsplit(self.path)
            query = {name: values[-1] for name, values in parse_qs(parts.query, max_num_fields=20).items()}
        except ValueError as error:
            self.send_error(HTTPStatus.BAD_REQUEST, str(error))
            return
        if not self._is_allowed(query):
            return
        match unquote(parts.path).split("/")[1:]:
            case [""]:
                if self.server.token is not None and "token" in query:
                    cookie = f"token={self.server.token}; HttpOnly; SameSite=Strict; Path=/"
                    self._answer(b"", "text/plain", HTTPStatus.SEE_OTHER, {"Location": "/", "Set-Cookie": cookie})
                else:
                    self._answer(read_asset("index.html"), _TYPES["html"])
            case ["assets", name] if name in ASSETS:
                self._answer(read_asset(name), _TYPES[name.rpartition(".")[2]])
            case ["data"]:
                self.server.hub.refresh()
                self._answer(self.server.hub.document(*_selection(query)), _TYPES["json"])
            case ["events"]:
                self._stream(*_selection(query))
            case ["pictures", run, name] if _index(run, len(self.server.hub.views)) is not None:
                try:
                    self._answer(self.server.hub.views[int(run)].picture(name), _TYPES["gif"])
                except OSError as error:
                    self.send_error(HTTPStatus.NOT_FOUND, f"{error.strerror or error}")
            case _:
                self.send_error(HTTPStatus.NOT_FOUND, "there is no such page: this server shows run folders at /")

    def _refuse_method(self) -> None:
        self.send_error(HTTPStatus.METHOD_NOT_ALLOWED, "this page can only be read: use GET")

    # the names that http.server calls, none of which changes anything
    do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = _refuse_method  # noqa: N815

    def _is_allowed(self, query: Mapping[str, str]) -> bool:
        """Check host and token; answer with an error and return False if they are wrong."""
        if self.server.token is not None:
            try:
                cookie = SimpleCookie(self.headers.get("Cookie", "")).get("token")
            except CookieError:
                cookie = None
            given = query.get("token") or (cookie.value if cookie is not None else "")
            if hmac.compare_digest(given.encode(), self.server.token.encode()):
                return True
            self.send_error(HTTPStatus.FORBIDDEN, "give the token: open the address that `watch` printed")
            return False
        if self.headers.get_all("Host") in [[host] for host in self.server.hosts]:
            return True
        self.send_error(HTTPStatus.FORBIDDEN, f"wrong Host header: open http://127.0.0.1:{self.server.server_port}/")
        return False

    def _stream(self, run: int | None, agent: int | None) -> None:
        hub = self.server.hub
        self._head(HTTPStatus.OK, "text/event-stream", {})
        self.wfile.write(b"retry: 1000\n\n")
        version, sent = -2, b""
        with hub.look(), suppress(OSError):  # the reader has gone, or is too slow: it may connect again
            while (version := hub.wait(version, 15.0)) >= 0:
                content = hub.document(run, agent)
                # a comment now and then shows whether the reader is still there
                self.wfile.write(b": still here\n\n" if content == sent else b"data: " + content + b"\n\n")
                sent = content

    def _answer(
        self, content: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK, headers: Mapping[str, str] | None = None
    ) -> None:
        self._head(status, kind, {"Content-Length": str(len(content)), **(headers or {})})
        self.wfile.write(content)

    def _head(self, status: HTTPStatus, kind: str, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        text = kind.startswith("text/") or kind == _TYPES["json"]
        self.send_header("Content-Type", f"{kind}; charset=utf-8" if text else kind)
        for name, value in {**_HEADERS, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer with a plain text, after reading what was sent too much: else the reader would see a reset."""
        status = HTTPStatus(code)
        if status in (HTTPStatus.REQUEST_URI_TOO_LONG, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE):
            self._drain()
        self.close_connection = True
        self.request_version = "HTTP/1.0"
        text = f"{status.value} {status.phrase}: {message or status.description}\n".encode()
        headers = {"Allow": "GET"} if status == HTTPStatus.METHOD_NOT_ALLOWED else {}
        self._answer(text, "text/plain", status, headers)

    def _drain(self) -> None:
        until, left = time.monotonic() + 2.0, _MAX_DRAINED_BYTES
        self.connection.settimeout(0.2)
        with suppress(OSError):  # nothing more comes
            while left > 0 and time.monotonic() < until and (data := self.rfile.read1(2**16)):
                left -= len(data)
        self.connection.settimeout(_SEND_TIMEOUT)

    def log_message(self, format: str, *values: Any) -> None:
        """Write nothing: the terminal belongs to the run."""


def _encode(document: dict[str, Any]) -> bytes:
    """Return a document as JSON."""
    try:
        return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError):  # values from a file that no run writes: look at each of them
        return json.dumps(plain(document), separators=(",", ":"), allow_nan=False).encode()


def _index(text: str, count: int = 10**9) -> int | None:
    """Return the number below `count` that a text names; None if it names none."""
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else count
    return number if number < count else None


def _selection(query: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Return run and agent of a query; None for all."""
    return _index(query.get("run", "")), _index(query.get("agent", ""))


class LivePage:
    """Serve views of run folders until `close`. Without a port, take 6160 or, if others use it, one of the next."""

    def __init__(self, views: Sequence[RunView], *, host: str = "127.0.0.1", port: int | None = None) -> None:
        if port is not None and not 0 <= port < 65536:
            raise ConfigError(f"--port {port}: give a number from 0 (any free port) to 65535")
        token = None if _is_loopback(host) else secrets.token_urlsafe(24)
        self._hub = _Hub(views)
        try:
            self._server = _bind(host, port, self._hub, token)
        except BaseException:
            self._hub.close()
            raise
        name = "127.0.0.1" if token is None else socket.gethostname()
        self.address = f"http://{name}:{self._server.server_port}/" + (f"?token={token}" if token else "")
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="page-server", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving; may be called twice."""
        self._server.shutdown()
        self._server.server_close()
        self._hub.close()
        self._thread.join(timeout=10.0)

    def __enter__(self) -> LivePage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError as error:
        raise ConfigError(f"--host {host!r}: give an address of this machine, such as 127.0.0.1 or 0.0.0.0") from error


def _bind(host: str, port: int | None, hub: _Hub, token: str | None) -> _Server:
    ports = range(DEFAULT_PORT, DEFAULT_PORT + 20) if port is None else [port]
    for number in ports:
        try:
            return _Server((host, number), hub, token)
        except OSError as error:
            if number == ports[-1]:
                raise ConfigError(f"cannot serve on {host}:{number}: {error.strerror}; give another --port") from error
    raise AssertionError("there is always a last port")


if __name__ == "__main__":  # the page of `train --watch`: a process of its own, which ends with the one that started it
    os.nice(10)  # the run comes first
    with LivePage(open_views([Path(word) for word in sys.argv[1:]])) as _page:
        sys.stdout.write(_page.address + "\n")
        sys.stdout.flush()
        sys.stdin.buffer.read()
