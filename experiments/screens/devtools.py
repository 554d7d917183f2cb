"""A headless Chromium that is queried over its debugging pipe: live pages, what is on their first screen.

For pages of a server, which load by and by; `browser.py` is for files. Standard library only, and nothing but
this machine is reached: every other host name resolves to nothing and is noted.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from browser import FLAGS

SEEN = """(() => {
  // What a person sees: laid out, inside the window, and not cut away by a box around it.
  const found = [], wide = innerWidth, high = innerHeight;
  if (!document.body) return found;
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walk.nextNode());) {
    const text = node.textContent.trim();
    if (!text) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    let {left, top, right, bottom} = range.getBoundingClientRect();
    if (right <= left || bottom <= top) continue;
    let hidden = false;
    for (let e = node.parentElement; e && e !== document.body; e = e.parentElement) {
      const style = getComputedStyle(e);
      if (style.visibility === "hidden" || style.display === "none" || style.opacity === "0") hidden = true;
      if (style.overflowX !== "visible" || style.overflowY !== "visible") {
        const box = e.getBoundingClientRect();
        left = Math.max(left, box.left); right = Math.min(right, box.right);
        top = Math.max(top, box.top); bottom = Math.min(bottom, box.bottom);
      }
    }
    left = Math.max(left, 0); right = Math.min(right, wide);
    top = Math.max(top, 0); bottom = Math.min(bottom, high);
    if (hidden || right - left < 4 || bottom - top < 6) continue;
    found.push([text, Math.round(left), Math.round(top), Math.round(right), Math.round(bottom)]);
  }
  return found;
})()"""
"""Texts of the first screen with the part of them that is visible: left, top, right, bottom in pixels."""

WHOLE = """(text => {
  // Whether some place shows every letter of this text: each of its lines in the window, and cut by no box.
  if (!document.body) return false;
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walk.nextNode());) {
    const at = node.textContent.indexOf(text);
    if (at < 0) continue;
    let right = innerWidth, bottom = innerHeight, left = 0, top = 0;
    for (let e = node.parentElement; e && e !== document.body; e = e.parentElement) {
      const style = getComputedStyle(e);
      if (style.overflowX === "visible" && style.overflowY === "visible") continue;
      const box = e.getBoundingClientRect();
      left = Math.max(left, box.left); right = Math.min(right, box.right);
      top = Math.max(top, box.top); bottom = Math.min(bottom, box.bottom);
    }
    const range = document.createRange();
    range.setStart(node, at);
    range.setEnd(node, at + text.length);
    const lines = [...range.getClientRects()].filter(line => line.width > 0);
    const fits = line => line.left >= left - 1 && line.right <= right + 1
      && line.top >= top - 1 && line.bottom <= bottom + 1;
    if (lines.length && lines.every(fits)) return true;
  }
  return false;
})(%s)"""

FAINT = r"""(() => {
  // Every text as it is drawn: its colour over all grounds below it, WCAG 2.2, 1.4.3.
  const parts = (css) => {
    const [r, g, b, a] = css.match(/[\d.]+/g).map(Number);
    return [r, g, b, a === undefined ? 1 : a];
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3]));
  const light = (c) => {
    const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = c.map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const faint = [];
  let seen = 0;
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walk.nextNode());) {
    const holder = node.parentElement;
    const box = holder.getBoundingClientRect();
    const style = getComputedStyle(holder);
    if (!node.textContent.trim() || !box.width || !box.height || style.visibility === "hidden") continue;
    if (holder.closest("script,style,title,desc")) continue;
    const grounds = [];
    let opacity = 1;
    for (let e = holder; e; e = e.parentElement) {
      const own = getComputedStyle(e);
      opacity *= Number(own.opacity);
      if (!(e instanceof SVGElement)) grounds.unshift(parts(own.backgroundColor));
    }
    const ground = grounds.reduce((below, top) => over(top, below), [255, 255, 255]);
    const ink = parts(holder instanceof SVGElement ? style.fill : style.color);
    ink[3] *= opacity;
    const pair = [light(over(ink, ground)), light(ground)].sort((a, b) => b - a);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const contrast = (pair[0] + 0.05) / (pair[1] + 0.05);
    seen += 1;
    if (contrast < (large ? 3 : 4.5)) faint.push([node.textContent.trim().slice(0, 40), contrast.toFixed(2)]);
  }
  return {seen, faint};
})()"""
"""How many texts the page draws, and those whose contrast is below WCAG 2.2, 1.4.3."""

KEYS = {"Tab": 9, "Enter": 13}
"""Names of keys and their Windows codes, which a browser asks for on every system."""
AS_THREE_AND_FOUR = """import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])"""
"""The browser listens on its descriptor 3 and speaks on 4, whatever ours are."""


def _high(pair):
    # Out of the way of 3 and 4.
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in pair]
    for end in pair:
        os.close(end)
    return moved


class Browser:
    """One browser with one page; use it as a context.

    Args:
        path: Of the program.
        width: Of the page, in CSS pixels.
        height: Likewise.
        storage: What the page's origin finds in its local storage.
        cookie: Name, value and url of one that the browser has from the start.
    """

    def __init__(self, path, width, height, *, storage=None, cookie=None):
        self._folder = tempfile.mkdtemp(prefix="screens-")
        to_browser, self._write = _high(os.pipe())
        self._read, from_browser = _high(os.pipe())
        flags = [*FLAGS, "--remote-debugging-pipe", f"--user-data-dir={self._folder}/profile"]
        flags += ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
        words = [str(to_browser), str(from_browser), path, *flags]
        self._process = subprocess.Popen(
            [sys.executable, "-c", AS_THREE_AND_FOUR, *words],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._number = 0
        self._session = ""
        self.hosts = set()
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Network"):
                self.call(f"{domain}.enable")
            self.resize(width, height)
            if cookie:
                self.call("Network.setCookie", **cookie)
            if storage:
                lines = "".join(
                    f"localStorage.setItem({json.dumps(k)},{json.dumps(v)});" for k, v in storage.items()
                )
                self.call("Page.addScriptToEvaluateOnNewDocument", source=f"try{{{lines}}}catch(e){{}}")
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.close()

    def close(self):
        """End the browser and remove its profile."""
        os.close(self._write)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        os.close(self._read)
        shutil.rmtree(self._folder, ignore_errors=True)

    def call(self, method, *, timeout_s=120.0, **params):
        """One command of the protocol and its result.

        Raises:
            RuntimeError: The browser refuses it.
            TimeoutError: It says nothing.
        """
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + timeout_s
        while True:
            reported = self._next(until)
            if reported.get("id") == self._number:
                if "error" in reported:
                    raise RuntimeError(f"{method}: {reported['error']}")
                return reported["result"]

    def _next(self, until):
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError("the browser says nothing")
            got = os.read(self._read, 1 << 20)
            if not got:
                raise RuntimeError("the browser ended")
            self._buffer += got
        line, self._buffer = self._buffer.split(b"\0", 1)
        reported = json.loads(line)
        if reported.get("method") == "Network.requestWillBeSent":
            url = reported["params"]["request"]["url"]
            if url.startswith(("http://", "https://")):
                self.hosts.add(url.split("/")[2].rsplit(":", 1)[0])
        return reported

    def resize(self, width, height, *, scale=1):
        """The page's size, in CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=False,
        )

    def open(self, url):
        """Go there; the page goes on loading."""
        # Only the part behind the mark may differ, which alone loads nothing.
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)

    def prefer(self, *, dark=False, still=False):
        """The reader's preferences that the page receives: dark colours, nothing that moves."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        motion = {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"}
        self.call("Emulation.setEmulatedMedia", features=[scheme, motion])

    def press(self, key, *, shift=False):
        """A key of the keyboard, down and up."""
        known = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key], "modifiers": 8 if shift else 0}
        # What a button does at Enter, it does at the character and not at the key.
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **known, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **known)

    def run(self, script):
        """The value of an expression in the page."""
        reported = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in reported:
            raise RuntimeError(str(reported["exceptionDetails"])[:500])
        return reported["result"].get("value")

    def seen(self):
        """Texts on the first screen, each with its visible box: left, top, right, bottom."""
        return self.run(SEEN)

    def shows_whole(self, text):
        """Whether every letter of a text can be read on the first screen, in one line or in several."""
        return self.run(WHOLE % json.dumps(text))

    def wait_for(self, *texts, timeout_s=90.0):
        """Wait until all of these are on the first screen.

        Returns:
            Seconds it took, and what is there then.

        Raises:
            AssertionError: They did not come; with those that did not and all that is there.
        """
        begun = time.monotonic()
        while True:
            there = self.seen()
            message = "\n".join(row[0] for row in there)
            missing = [text for text in texts if text not in message]
            took = time.monotonic() - begun
            if not missing:
                return took, there
            if took > timeout_s:
                raise AssertionError(f"not on the first screen: {missing}; there is:\n{message}")
            time.sleep(0.1)

    def wait_until(self, script, *, timeout_s=90.0):
        """Wait until an expression in the page is true.

        Returns:
            Seconds it took.

        Raises:
            AssertionError: It never was.
        """
        begun = time.monotonic()
        while not self.run(script):
            if time.monotonic() - begun > timeout_s:
                raise AssertionError(f"never true: {script}")
            time.sleep(0.1)
        return time.monotonic() - begun

    def settle(self, still_s=2.0, timeout_s=60.0):
        """Wait until the texts of the first screen have not changed for so long: charts come late."""
        until, since, last = time.monotonic() + timeout_s, time.monotonic(), None
        while time.monotonic() < min(until, since + still_s):
            time.sleep(0.2)
            if (now := self.seen()) != last:
                last, since = now, time.monotonic()

    def shoot(self, out):
        """A picture of what is in the window."""
        data = self.call("Page.captureScreenshot", format="png")["data"]
        Path(out).write_bytes(base64.b64decode(data))
