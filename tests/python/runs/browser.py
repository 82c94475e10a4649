"""Opens pages in Chromium without a window, over the DevTools protocol on a pipe: sizes, themes, console, screenshots."""

import base64
import contextlib
import json
import os
import shutil
import subprocess

PROGRAM = shutil.which("chromium") or shutil.which("google-chrome")


class Browser:
    """One page at a time. `errors` are what the console and the page complained about since the last `open`."""

    def __init__(self, profile):
        request, self._write = os.pipe()
        self._read, reply = os.pipe()
        # Chromium reads requests from descriptor 3 and answers on 4.
        shell = f'exec "$0" "$@" 3<&{request} 4>&{reply}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, PROGRAM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(request, reply), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(request)
        os.close(reply)
        self._rest, self._count, self._session, self.errors = b"", 0, None, []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in "Page", "Runtime", "Log":
            self.call(f"{domain}.enable")

    def _message(self):
        while b"\0" not in self._rest:
            block = os.read(self._read, 1 << 20)
            assert block, "the browser ended"
            self._rest += block
        text, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(text)
        method, of = message.get("method"), message.get("params", {})
        if method == "Log.entryAdded" and of["entry"]["level"] in ("error", "warning"):
            self.errors.append(of["entry"]["text"])
        if method == "Runtime.consoleAPICalled" and of["type"] in ("error", "warning", "assert"):
            self.errors.append(str(of["args"]))
        if method == "Runtime.exceptionThrown":
            self.errors.append(str(of["exceptionDetails"]))
        return message

    def call(self, method, **parameters):
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._message()).get("id") != self._count:
            pass
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def open(self, page, width, height, dark=False):
        """A page: the path of a file, or an address."""
        self.errors.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[theme])
        self.call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        while self._message().get("method") != "Page.loadEventFired":
            pass

    def value(self, expression):
        """Of an expression of JavaScript in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def picture(self, path):
        """The whole page as PNG."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self):
        with contextlib.suppress(OSError, AssertionError):
            self._session = None
            self.call("Browser.close")
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
        os.close(self._write)
        os.close(self._read)
