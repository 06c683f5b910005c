"""The server of the live page: what it answers, what it refuses, and that hostile readers do not disturb others."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from parallel_agents.core.errors import ConfigError
from parallel_agents.tracking import live_page
from parallel_agents.tracking.live_page import LivePage
from parallel_agents.tracking.run_view import open_views
from tests.tracking.run_folders import epoch_line, make_run_folder

HOSTILE = '<img src=x onerror="alert(1)">&\'"'


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run_folder(tmp_path / "run", epochs=20)


@pytest.fixture
def page(run: Path) -> Iterator[LivePage]:
    with LivePage(open_views([run]), port=0) as served:
        yield served


def ask(page: LivePage, path: str, method: str = "GET", **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(page.address).port or 0, timeout=10)
    connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    content = answer.read() if path.partition("?")[0] != "/events" or answer.status != 200 else b""
    connection.close()
    return answer.status, answer.headers, content


def events(page: LivePage, query: str = "") -> Iterator[dict[str, Any]]:
    """Yield the documents of a stream."""
    with socket.create_connection(("127.0.0.1", urlsplit(page.address).port or 0), timeout=10) as reader:
        reader.sendall(f"GET /events?{query} HTTP/1.1\r\nHost: {urlsplit(page.address).netloc}\r\n\r\n".encode())
        for text in reader.makefile("rb"):
            if text.startswith(b"data: "):
                yield json.loads(text[6:])


def tile(document: dict[str, Any], label: str) -> str:
    return next(value for name, value, _ in document["sections"][0]["panels"][0]["tiles"] if name == label)


def test_the_page_its_assets_its_data_and_its_pictures_are_served(page: LivePage) -> None:
    for path, kind in (
        ("/", "text/html"), ("/assets/page.js", "text/javascript"), ("/assets/page.css", "text/css"),
        ("/assets/uplot.min.js", "text/javascript"), ("/data", "application/json"), ("/pictures/0/episode_000001.gif", "image/gif"),
    ):  # fmt: skip
        status, headers, content = ask(page, path)
        assert (status, headers["Content-Type"].partition(";")[0]) == (200, kind)
        assert content
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"


def test_what_is_appended_arrives_within_two_seconds(page: LivePage, run: Path) -> None:
    stream = events(page)
    assert tile(next(stream), "Epoch") == "20"
    with (run / "metrics.jsonl").open("a") as file:
        file.write(epoch_line(21, [70.0, 80.0]) + "\n")
    began = time.monotonic()
    document = next(stream)
    assert time.monotonic() - began < 2.0
    assert (tile(document, "Epoch"), tile(document, "Reward")) == ("21", "75")
    stream.close()


def test_nothing_is_read_while_nobody_looks(page: LivePage, run: Path) -> None:
    view = page._hub.views[0]
    time.sleep(0.7)
    assert view.version == 0
    stream = events(page)
    next(stream)
    assert view.version > 0
    stream.close()


@pytest.mark.parametrize("method", ["DELETE", "POST", "PUT", "PATCH", "OPTIONS", "HEAD", "TRACE"])
def test_only_get_is_answered(page: LivePage, method: str) -> None:
    status, headers, content = ask(page, "/", method)
    assert (status, headers["Allow"]) == (405, "GET")
    assert method == "HEAD" or b"this page can only be read: use GET" in content


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:6160", "127.0.0.1", "127.0.0.1:1", "", "localhost@evil.example"]
)
@pytest.mark.parametrize("path", ["/", "/data", "/events", "/assets/page.js", "/pictures/0/episode_000001.gif"])
def test_a_forged_host_is_refused(page: LivePage, host: str, path: str) -> None:
    status, _, content = ask(page, path, Host=host)
    assert status == 403
    assert f"wrong Host header: open {page.address}".encode() in content


def test_two_hosts_or_none_are_refused(page: LivePage) -> None:
    for head in (f"Host: {urlsplit(page.address).netloc}\r\nHost: evil.example\r\n", ""):
        with socket.create_connection(("127.0.0.1", urlsplit(page.address).port or 0), timeout=10) as reader:
            reader.sendall(f"GET /data HTTP/1.1\r\n{head}\r\n".encode())
            assert reader.makefile("rb").readline().startswith(b"HTTP/1.0 403")


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd", "/assets/../live_page.py", "/assets/..%2flive_page.py", "/assets/%2e%2e/live_page.py", "//etc/passwd",
        "/pictures/0/../summary.json", "/pictures/0/..%2fsummary.json", "/pictures/0/summary.json", "/pictures/7/episode_000001.gif",
        "/pictures/-1/episode_000001.gif", "/pictures/0/episode_000001.gif%00.png", "/pictures/%D9%A0/episode_000001.gif",
        "/assets/", "/run/metrics.jsonl", "/assets/index.html", "/pictures/0/episode_000002.gif",
    ],
)  # fmt: skip
def test_no_path_leads_out_of_what_is_served(page: LivePage, run: Path, path: str) -> None:
    (run / "episode_000002.gif").symlink_to("/etc/hostname")
    status, _, content = ask(page, path)
    assert status == 404
    assert content.startswith(b"404 Not Found: ")


def test_a_query_of_ten_megabytes_is_refused_with_a_message(page: LivePage) -> None:
    status, _, content = ask(page, "/data?" + "x" * 10_000_000)
    assert status == 414
    assert content.startswith(f"414 {HTTPStatus(414).phrase}".encode())
    assert ask(page, "/data?" + "&".join(f"a{n}=1" for n in range(1000)))[0] == 400
    assert ask(page, "/data?run=" + "9" * 5000)[0] == 200
    assert ask(page, "/", **{f"X-{n}": "1" for n in range(150)})[0] == 431


def test_a_reader_that_takes_nothing_is_dropped_and_others_are_served(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_page._Handler, "timeout", 0.5)
    monkeypatch.setattr(live_page, "_MAX_CONNECTIONS", 8)
    large = b"x" * 30_000_000  # more than any buffer on the way holds
    monkeypatch.setattr(live_page._Hub, "document", lambda self, run, agent: large)
    with LivePage(open_views([run]), port=0) as page:
        sleepers = [socket.create_connection(("127.0.0.1", urlsplit(page.address).port or 0)) for _ in range(4)]
        for sleeper in sleepers[:2]:  # two ask and never read; two never finish their question
            sleeper.sendall(f"GET /events HTTP/1.1\r\nHost: {urlsplit(page.address).netloc}\r\n\r\n".encode())
        began = time.monotonic()
        assert ask(page, "/")[0] == 200
        assert time.monotonic() - began < 2.0
        until = time.monotonic() + 10.0
        while page._hub._viewers and time.monotonic() < until:
            time.sleep(0.05)
        assert page._hub._viewers == 0
        for sleeper in sleepers:
            sleeper.close()


def test_more_connections_than_allowed_are_closed_at_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_page, "_MAX_CONNECTIONS", 2)
    with LivePage(open_views([run]), port=0) as page:
        address = ("127.0.0.1", urlsplit(page.address).port or 0)
        waiting = [socket.create_connection(address) for _ in range(2)]
        time.sleep(0.3)
        with socket.create_connection(address, timeout=10) as third:
            assert third.recv(10) == b""
        for one in waiting:
            one.close()
        time.sleep(0.2)
        assert ask(page, "/")[0] == 200


def test_beyond_loopback_a_token_is_needed(run: Path) -> None:
    with LivePage(open_views([run]), host="0.0.0.0", port=0) as page:
        token = re.search(r"\?token=([\w-]{30,})$", page.address)
        assert token is not None
        assert (
            ask(page, "/data")[0] == ask(page, "/data?token=wrong")[0] == ask(page, "/", Cookie="token=wrong")[0] == 403
        )
        status, headers, _ = ask(page, f"/?token={token[1]}")
        assert (status, headers["Location"]) == (303, "/")
        assert "HttpOnly; SameSite=Strict" in headers["Set-Cookie"]
        assert ask(page, "/data", Cookie=headers["Set-Cookie"].partition(";")[0])[0] == 200
        assert ask(page, "/data", Cookie="\x01=;;=")[0] == 403


def test_addresses_and_ports_that_cannot_be_used_are_named(run: Path, page: LivePage) -> None:
    port = urlsplit(page.address).port or 0
    with pytest.raises(
        ConfigError, match=rf"cannot serve on 127.0.0.1:{port}: Address already in use; give another --port"
    ):
        LivePage(open_views([run]), port=port)
    with pytest.raises(ConfigError, match=r"--host 'example.org': give an address of this machine"):
        LivePage(open_views([run]), host="example.org")
    with pytest.raises(ConfigError, match=r"--port 70000: give a number from 0"):
        LivePage(open_views([run]), port=70_000)


def test_several_runs_stand_side_by_side_and_one_may_vanish(run: Path, tmp_path: Path) -> None:
    other = make_run_folder(tmp_path / "other", epochs=5, agents=(HOSTILE, "b"))
    with LivePage(open_views([run, other]), port=0) as page:
        both = json.loads(ask(page, "/data")[2])
        assert both["title"] == "2 runs"
        assert [row[0] for row in both["sections"][0]["panels"][0]["rows"]] == ["run", "other"]
        one = json.loads(ask(page, "/data?run=1&agent=0")[2])
        assert (one["title"], one["agent"], one["agents"][1]) == ("other", "0", ["0", HOSTILE])
        shutil.rmtree(other)
        gone = json.loads(ask(page, "/data?run=1")[2])
        assert tile(gone, "Epoch") == "5", "what was read is still shown"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_three_viewers_cost_at_most_two_percent_of_the_machine(run: Path) -> None:
    """The server is a process of its own: what it costs a run is the processor time that it takes."""
    command = [sys.executable, "-m", "parallel_agents.tracking.live_page", str(run)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        address = urlsplit(server.stdout.readline().strip())
        viewers = [socket.create_connection((address.hostname or "", address.port or 0)) for _ in range(3)]
        for viewer in viewers:
            viewer.sendall(f"GET /events HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode())
            threading.Thread(target=_read_all, args=(viewer,), daemon=True).start()
        time.sleep(2.0)
        before, began = _processor_seconds(server.pid), time.monotonic()
        with (run / "metrics.jsonl").open("a") as file:
            for epoch in range(21, 121):
                file.write(epoch_line(epoch, [1.0 * epoch, 2.0]) + "\n")
                file.flush()
                time.sleep(0.1)
        share = (_processor_seconds(server.pid) - before) / (time.monotonic() - began) / (os.cpu_count() or 1)
        for viewer in viewers:
            viewer.close()
        server.stdin.close()
    assert share < 0.02


def _read_all(viewer: socket.socket) -> None:
    try:
        while viewer.recv(2**20):
            pass
    except OSError:
        pass


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / float(os.sysconf("SC_CLK_TCK"))
