"""A headless Chromium for the tests of pages, driven over two pipes: no port and no other package is needed."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--no-first-run", "--remote-debugging-pipe"),
)


class Page:
    """One tab. `complaints` is what the browser had to say: exceptions, errors and whatever went to the console."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._buffer = b""
        self._last = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        self._loaded = False
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def show(self, address: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a page as a window, or a phone, of that width in CSS pixels shows it."""
        phone = width < 600
        how = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self._call("Emulation.setDeviceMetricsOverride", **how)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._call("Emulation.setEmulatedMedia", features=scheme)
        self.complaints.clear()
        for url in ("about:blank", address):  # the same page with another fragment would not be loaded anew
            self._loaded = False
            self._call("Page.navigate", url=url)
            while not self._loaded:
                self._take(self._receive())

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression on the page. Raises AssertionError where it throws."""
        found = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def picture(self, path: Path) -> None:
        """The window as a PNG file."""
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            found = self._receive()
            if found.get("id") == self._last:
                assert "error" not in found, found["error"]
                return dict(found["result"])
            self._take(found)

    def _receive(self, seconds: float = 120) -> dict[str, Any]:
        ends = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            assert select.select([self._read], [], [], max(0.0, ends - time.monotonic()))[0], "Chromium does not answer"
            chunk = os.read(self._read, 1 << 20)
            assert chunk, "Chromium ended"
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        about = event.get("params", {})
        if event.get("method") == "Page.loadEventFired":
            self._loaded = True
        elif event.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            self.complaints.append(json.dumps(about)[:2000])


@contextlib.contextmanager
def chromium(folder: Path) -> Iterator[Page]:
    """A browser with its profile in `folder`; ended with the block."""
    assert CHROMIUM is not None
    to_it, from_it = os.pipe(), os.pipe()
    # DevTools speaks on 3 and 4: ours are moved out of the way, so that neither is overwritten before it is copied
    theirs = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_it[0], from_it[1])]
    for end in (to_it[0], from_it[1]):
        os.close(end)
    arguments = [CHROMIUM, *_FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"]
    process = subprocess.Popen(
        arguments,
        preexec_fn=lambda: [os.dup2(end, place) for end, place in zip(theirs, (3, 4), strict=True)] and None,
        pass_fds=(3, 4),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for end in theirs:
        os.close(end)
    try:
        yield Page(from_it[0], to_it[1])
    finally:
        os.close(to_it[1])
        os.close(from_it[0])
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
