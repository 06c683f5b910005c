"""A small client of chromedriver (the W3C WebDriver protocol over HTTP), for tests in a real headless browser."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--force-device-scale-factor=1",
    "--hide-scrollbars", "--disable-extensions", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)  # fmt: skip


def missing() -> str | None:
    """Return why there is no browser; None: there is one."""
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"{' and '.join(absent)} not installed (Debian: chromium, chromium-driver)" if absent else None


class Browser:
    """One headless Chromium; `with Browser() as browser`."""

    def __init__(self) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True)
        self._driver = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._driver.stdout is not None
        for text in self._driver.stdout:
            if "successfully on port" in text:
                self._port = int(text.rstrip(". \n").rpartition(" ")[2])
                break
        arguments = [*FLAGS, f"--user-data-dir={self._profile.name}"]
        options = {"binary": shutil.which("chromium"), "args": arguments}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        self._session = ""
        self._session = "/" + self.call("POST", "/session", capabilities={"alwaysMatch": wanted})["sessionId"]
        self._session = "/session" + self._session

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.call("DELETE", "")
        finally:
            self._driver.terminate()
            self._driver.wait(timeout=10)
            assert self._driver.stdout is not None
            self._driver.stdout.close()
            self._profile.cleanup()

    def call(self, method: str, path: str, **body: Any) -> Any:
        """Send a command to the driver and return its value."""
        data = json.dumps(body).encode() if method == "POST" else None
        address = f"http://127.0.0.1:{self._port}{self._session}{path}"
        request = urllib.request.Request(address, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def open(self, address: str) -> None:
        self.call("POST", "/url", url=address)

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script as the body of a function and return what it returns."""
        return self.call("POST", "/execute/sync", script=script, args=list(arguments))

    def wait(self, condition: str, seconds: float = 10.0) -> Any:
        """Wait until a JavaScript expression is true, and return it."""
        until = time.monotonic() + seconds
        while not (value := self.run(f"return {condition}")):
            if time.monotonic() > until:
                raise TimeoutError(f"{condition} is not true after {seconds} s: {self.text()[:500]}; {self.errors()}")
            time.sleep(0.05)
        return value

    def text(self) -> str:
        return str(self.run("return document.body.innerText"))

    def tile(self, label: str) -> str:
        """Return the value of a tile of the page."""
        script = "return [...document.querySelectorAll('.tile')].find(t => t.querySelector('dt').textContent === arguments[0])?.querySelector('.value').textContent ?? ''"
        return str(self.run(script, label))

    def errors(self) -> list[str]:
        """Return what the console has said since the last call."""
        return [entry["message"] for entry in self.call("POST", "/se/log", type="browser")]

    def requests(self) -> list[str]:
        """Return the addresses asked for since the last call."""
        entries = [json.loads(e["message"])["message"] for e in self.call("POST", "/se/log", type="performance")]
        return [e["params"]["request"]["url"] for e in entries if e["method"] == "Network.requestWillBeSent"]

    def emulate(self, *, width: int = 1400, height: int = 900, dark: bool = False) -> None:
        """Set the size of the window and the colour scheme."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", features=[scheme])

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self.call("POST", "/goog/cdp/execute", cmd=command, params=parameters)

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Write a picture of the window, or of the whole page."""
        found = self.devtools("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))
