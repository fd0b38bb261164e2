"""Chromium without a window, driven over its DevTools protocol; Debian's package is enough."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 60.0


def find_chromium() -> str | None:
    """Return the path of a Chromium, ``None`` if there is none on this machine."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class NavigatedError(Exception):
    """The page went away while it was asked."""


class Browser:
    """One browser with one tab and a profile of its own.

    ``dialogs`` holds what scripts asked the user, such as ``alert``; ``refused`` what the pages'
    Content-Security-Policy kept from happening.
    """

    def __init__(self, folder: Path, *, width: int = 1280, height: int = 900) -> None:
        self._folder = folder / "chromium"
        self._size = (width, height)
        self._process: subprocess.Popen[bytes] | None = None
        self._open = ExitStack()
        self._socket: ClientConnection | None = None
        self._session: str | None = None
        self._last = 0
        self.dialogs: list[str] = []
        self.refused: list[str] = []

    def __enter__(self) -> Self:
        chromium = find_chromium()
        assert chromium, "no Chromium on PATH: apt-get install chromium"
        self._folder.mkdir(parents=True)
        width, height = self._size
        self._process = subprocess.Popen(
            [
                chromium,
                "--headless=new",
                "--no-first-run",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                "--disable-component-update",
                "--hide-scrollbars",
                "--lang=en-US",
                "--remote-debugging-port=0",
                f"--user-data-dir={self._folder}",
                f"--window-size={width},{height}",
                # Its sandbox needs a user who is not root; what it opens here is our own.
                *(["--no-sandbox"] if os.geteuid() == 0 else []),
                "about:blank",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self._attach()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    # --- What a test does -------------------------------------------------------------------------

    def cookie(self, url: str, name: str, value: str) -> None:
        """Set a cookie for the site of a URL."""
        self._call("Network.setCookie", url=url, name=name, value=value, httpOnly=True)

    def forget_cookies(self) -> None:
        self._call("Network.clearBrowserCookies")

    def prefer(self, scheme: str) -> None:
        """Prefer a colour scheme: ``light`` or ``dark``."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", features=features)

    def open(self, url: str) -> int:
        """Open a page and wait until it is loaded; return the HTTP status of its answer."""
        statuses: list[int] = []
        loader = ""

        def notice(event: Mapping[str, Any]) -> bool:
            if event["method"] == "Network.responseReceived":
                found = event["params"]
                if found["type"] == "Document" and found.get("loaderId") == loader:
                    statuses.append(found["response"]["status"])
            return event["method"] == "Page.loadEventFired" and bool(statuses)

        pending: list[Mapping[str, Any]] = []
        loader = self._call("Page.navigate", pending.append, url=url)["loaderId"]
        if not any(notice(event) for event in pending):
            self._until(notice)
        return statuses[0]

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        found = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, script: str, seconds: float = PATIENCE) -> Any:
        """Wait until an expression in the page is true, and return its value.

        Between two pages there may be nothing that it speaks of: then it is not true yet.
        """
        deadline = time.monotonic() + seconds
        shown = None
        while time.monotonic() < deadline:
            with suppress(NavigatedError):
                if value := self.run(f"(() => {{ try {{ return {script} }} catch {{}} }})()"):
                    return value
                shown = self.run("document.body?.innerText")
            time.sleep(0.2)
        raise AssertionError(f"{seconds} s in vain for {script}: {shown}")

    def type(self, selector: str, text: str) -> None:
        """Type into the field that a selector finds."""
        self.run(f"document.querySelector({selector!r}).focus()")
        self._call("Input.insertText", text=text)

    def text(self) -> str:
        """Return what a viewer reads."""
        return str(self.run("document.body.innerText"))

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Take a picture of what is in view, or of the whole page."""
        found = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def resize(self, width: int, height: int) -> None:
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    # --- DevTools ---------------------------------------------------------------------------------

    def _attach(self) -> None:
        note = self._folder / "DevToolsActivePort"
        deadline = time.monotonic() + PATIENCE
        while not (note.exists() and len(note.read_text().split()) == 2):
            assert self._process is not None
            assert self._process.poll() is None, "Chromium ended at once"
            assert time.monotonic() < deadline, "Chromium gave no DevTools port"
            time.sleep(0.1)
        port, path = note.read_text().split()
        opening = connect(f"ws://127.0.0.1:{port}{path}", max_size=None)
        self._socket = self._open.enter_context(opening)
        targets = self._call("Target.getTargets")["targetInfos"]
        page = next(each["targetId"] for each in targets if each["type"] == "page")
        attached = self._call("Target.attachToTarget", targetId=page, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")

    def _call(
        self,
        method: str,
        notice: Callable[[Mapping[str, Any]], Any] = lambda event: None,
        **params: Any,
    ) -> dict[str, Any]:
        """Send a command and return its result; events that come meanwhile are noticed."""
        assert self._socket is not None
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": params}
        if self._session and not method.startswith("Target."):
            message["sessionId"] = self._session
        self._socket.send(json.dumps(message))
        while True:
            answer = self._receive()
            if answer.get("id") == self._last:
                error = answer.get("error")
                if error and "navigated" in error["message"]:
                    raise NavigatedError(method)
                assert not error, (method, error)
                return dict(answer["result"])
            if "method" in answer:
                notice(answer)

    def _until(self, notice: Callable[[Mapping[str, Any]], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self._receive()
            if "method" in answer and notice(answer):
                return
            assert time.monotonic() < deadline, "the page was not loaded in time"

    def _receive(self) -> dict[str, Any]:
        assert self._socket is not None
        answer: dict[str, Any] = json.loads(self._socket.recv(timeout=PATIENCE))
        match answer.get("method"):
            case "Page.javascriptDialogOpening":
                self.dialogs.append(answer["params"]["message"])
            case "Log.entryAdded":
                entry = answer["params"]["entry"]
                if "Content Security Policy" in entry["text"]:
                    self.refused.append(entry["text"])
        return answer

    def _end(self) -> None:
        self._open.close()
        if self._process is None:
            return
        for sign in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, sign)
                self._process.wait(10)
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue
