"""The live page and the report in a real browser: what they show, that they keep up, and that nothing leaves them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from parallel_agents.core.folder_lock import FolderLock
from parallel_agents.tracking.live_page import LivePage
from parallel_agents.tracking.report import MAX_BYTES, write_report
from parallel_agents.tracking.run_view import open_views
from tests.tracking.browser import Browser, missing
from tests.tracking.run_folders import epoch_line, make_run_folder

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"no browser: {missing()}")
ROOT = Path(__file__).parents[2]
AXE = ROOT / ".venv" / "axe-core" / "package" / "axe.min.js"
HOSTILE = '</script><img src=x onerror="document.title=1">&lt;'


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run_folder(tmp_path / "run", epochs=20)


def serious_faults(browser: Browser) -> list[str]:
    """Return what axe-core finds serious or critical."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed (npm): make test fetches it where it can")
    browser.run(AXE.read_text())
    script = "return axe.run(document, {resultTypes: ['violations']}).then(r => r.violations.filter(v => ['serious', 'critical'].includes(v.impact)).map(v => v.id + ': ' + v.nodes.map(n => n.html).slice(0, 3).join(' ')))"
    return list(browser.run(script))


def test_the_page_shows_a_run_that_goes_on_ends_and_is_served_anew(browser: Browser, run: Path) -> None:
    (run / "summary.json").unlink()
    lock = FolderLock(run)
    page = LivePage(open_views([run]), port=0)
    browser.errors()
    browser.open(page.address)
    browser.wait("document.body.dataset.drawn")
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-2])
    assert browser.tile("Status") == "running"
    assert float(browser.tile("Reward")) == pytest.approx(last["mean_reward"], rel=1e-3)
    assert float(browser.tile("Turns/s").replace(",", "")) == pytest.approx(last["turns_per_second"], rel=1e-3)
    assert browser.run("return document.querySelectorAll('.uplot canvas').length") >= 8
    with (run / "metrics.jsonl").open("a") as file:
        file.write(epoch_line(21, [70.0, 80.5]) + "\n")
    began = time.monotonic()
    while browser.tile("Reward") != "75.25":
        assert time.monotonic() - began < 2.0, "an epoch is shown within two seconds"
        time.sleep(0.05)
    lock.release()
    (run / "summary.json").write_text('{"digest": "e3b0c442"}')
    browser.wait("document.querySelector('.value').textContent === 'ended'")
    assert "e3b0c442" in browser.text()
    assert browser.errors() == []
    page.close()
    browser.wait("!document.getElementById('connection').hidden")
    assert browser.tile("Epoch") == "21", "the last state stays"
    browser.errors()  # the browser itself reports that the server is gone
    with (run / "metrics.jsonl").open("a") as file:
        file.write(epoch_line(22, [1.0, 2.0]) + "\n")
    with LivePage(open_views([run]), port=urlsplit(page.address).port):
        browser.wait("document.getElementById('connection').hidden", 15.0)
        browser.wait("document.querySelectorAll('.value')[1].textContent === '22'")
        browser.open("about:blank")


def test_several_runs_hostile_names_and_accessibility(browser: Browser, run: Path, tmp_path: Path) -> None:
    other = make_run_folder(tmp_path / HOSTILE.replace("/", ""), epochs=9, agents=(HOSTILE, "b"), extra={HOSTILE: 3.0})
    with LivePage(open_views([run, other]), port=0) as page:
        browser.errors()
        browser.open(page.address)
        browser.wait("document.body.dataset.drawn")
        assert "2 runs" in browser.text()
        # by the keyboard alone: to the choice of runs, down to the second run
        browser.run("document.getElementById('run').focus()")
        for key in ("ArrowDown", "ArrowDown"):
            for kind in ("keyDown", "keyUp"):
                browser.devtools("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=40)
        browser.wait("document.getElementById('agent').options.length === 3")
        browser.wait(f"document.body.innerText.includes({json.dumps(HOSTILE)})")
        assert browser.run("return document.title").startswith(other.name), "no markup of a name was carried out"
        assert browser.run("return document.querySelectorAll('main img:not(.episode)').length") == 0
        browser.run("const s = document.getElementById('agent'); s.value = '1'; s.dispatchEvent(new Event('change'))")
        browser.wait("location.hash.includes('agent=1') && document.body.innerText.includes('Reward per epoch')")
        assert browser.errors() == []
        assert serious_faults(browser) == []
        browser.run("location.hash = ''")
        browser.wait("document.getElementById('title').textContent === '2 runs'")
        assert serious_faults(browser) == []
        browser.open("about:blank")


def test_a_report_opens_from_a_file_and_asks_for_nothing(browser: Browser, run: Path, tmp_path: Path) -> None:
    other = make_run_folder(tmp_path / "other", epochs=9, replicas=2, agents=(HOSTILE, "b"))
    written = write_report([run, other], tmp_path / "report.html")
    assert written["bytes"] == (tmp_path / "report.html").stat().st_size < MAX_BYTES
    browser.requests(), browser.errors()
    browser.open((tmp_path / "report.html").as_uri())
    browser.wait("document.body.dataset.drawn")
    assert browser.run("return document.title").startswith("2 runs")
    assert browser.run("return document.querySelectorAll('.uplot canvas').length") >= 15
    assert browser.run("return document.querySelector('img.episode').naturalWidth") == 1
    # chrome: is what the browser's own first tab asks for, perhaps late; a page from a file has no right to it
    asked = [address for address in browser.requests() if not address.startswith(("data:", "chrome:"))]
    assert asked == [(tmp_path / "report.html").as_uri()]
    assert browser.errors() == []
    blocked = browser.run(
        "const s = document.createElement('script'); s.textContent = 'window.x = 1'; document.head.append(s); return window.x ?? 0"
    )
    assert blocked == 0, "the policy of the file allows no other script"
    assert serious_faults(browser) == []
    browser.open("about:blank")


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [420, 1400])
def test_nothing_is_cut_off_at_any_width(browser: Browser, run: Path, width: int, dark: bool) -> None:
    with LivePage(open_views([run]), port=0) as page:
        browser.emulate(width=width, dark=dark)
        browser.open(page.address)
        browser.wait("document.body.dataset.drawn")
        time.sleep(0.5)
        assert browser.run("return document.documentElement.scrollWidth") <= width
        wider = "return [...document.querySelectorAll('.card, .tile, .card .uplot, .card svg')].filter(n => n.getBoundingClientRect().right > innerWidth + 0.5).length"
        assert browser.run(wider) == 0
        assert serious_faults(browser) == []
        browser.open("about:blank")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_million_epochs_are_painted_within_a_second(browser: Browser, run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        for first in range(21, 1_000_021, 10_000):
            file.write("".join(epoch_line(epoch, [1.0, epoch / 1e6]) + "\n" for epoch in range(first, first + 10_000)))
    painted, answered = [], []
    browser.emulate()
    for _ in range(5):  # a new server each time
        with LivePage(open_views([run]), port=0) as page:
            browser.open("about:blank")
            browser.open(page.address)
            browser.wait("document.querySelectorAll('.value')[1]?.textContent === '1,000,020'", 10.0)
            assert browser.run("return document.querySelectorAll('.uplot canvas').length") >= 8
            painted.append(browser.run("return performance.getEntriesByName('drawn')[0].startTime"))
            began = time.monotonic()
            browser.run(
                "document.getElementById('smoothing').value = 0; document.getElementById('smoothing').dispatchEvent(new Event('change'))"
            )
            answered.append(time.monotonic() - began)
            browser.open("about:blank")
    assert max(painted) < 1000.0, f"milliseconds to the first paint: {painted}"
    assert max(answered) < 0.5, "the page answers at once, while the rest of the file is being read"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_train_with_watch_serves_a_page_that_ends_with_the_run(browser: Browser, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "parallel_agents", "train", "treasure_hunt", "--agents", "3", "--epochs", "100000",
               "--quiet", "--watch", "--out", str(tmp_path / "run")]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as train:
        assert train.stderr is not None
        try:
            address = next(text.strip() for text in train.stderr if text.startswith("http://127.0.0.1:"))
            browser.open(address)
            epoch = "Number(document.querySelectorAll('.value')[1]?.textContent)"
            browser.wait(f"document.querySelector('.value')?.textContent === 'running' && {epoch} > 0", 60.0)
            first = browser.run(f"return {epoch}")
            browser.wait(f"{epoch} > {first}", 20.0)
            picture = "document.querySelector('img.episode')"
            browser.wait(f"{picture}?.naturalWidth > 100 && {picture}.src.startsWith('data:image/png;base64,')", 20.0)
            browser.run(f"window.before = {picture}.src")
            browser.wait(f"{picture}.src !== window.before", 20.0)  # the game goes on
            train.send_signal(signal.SIGINT)
            train.communicate(timeout=60)
        finally:
            train.kill()
    assert train.returncode == 130
    browser.wait("!document.getElementById('connection').hidden")
    assert "parallel-agents watch" in browser.run("return document.getElementById('connection').textContent")
    browser.open("about:blank")
