"""Studies in an MLflow of their own, served by a live `autotune ui`, and what its pages are called."""

import contextlib
import http.client
import http.cookies
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
import urllib.parse
from pathlib import Path

from devtools import Browser

AUTOTUNE = [sys.executable, "-m", "autotune"]
START_S = 240
"""MLflow's server took 75 s to answer on a machine with a load of 18."""
PANEL_CLOSED = {
    "mlflow.assistant.panelOpen_v1": "false",
    "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": "true",
}
"""The local storage of somebody who has closed MLflow's assistant once."""
SIZES = {"desktop": (1600, 1000), "phone": (390, 844)}
SHOTS = (
    ("mlflow-answer", "answer", "desktop", ("autotune apply",)),
    ("mlflow-answer-phone", "answer", "phone", ("autotune apply",)),
    ("mlflow-table", "table", "desktop", ("BEST",)),
    ("mlflow-charts", "charts", "desktop", ("Parallel Coordinates", "best_so_far_speedup")),
)
"""Name, page, size, what has to be there before the picture is taken."""


def sent(studies, folder):
    """Copies of studies, in a home and an MLflow of their own below the folder.

    Returns:
        The environment to look at them in, and the address of the store.
    """
    from autotune.driver.sinks.sync import sync_study
    from autotune.store.journal import Journal
    from autotune.store.outbox import MLFLOW

    uri = f"sqlite:///{Path(folder).absolute() / 'mlflow.db'}"
    for study in studies:
        copy = Path(folder) / "home" / "studies" / study.name
        shutil.copytree(study, copy, ignore=shutil.ignore_patterns("cache", "trials", "*.lock"))
        with Journal.open(copy, ballast_bytes=0) as journal:
            journal.resend(MLFLOW)
        if sync_study(copy, 300.0, tracking_uri=uri):
            raise SystemExit(f"{study.name} could not be sent")
    return {**os.environ, "AUTOTUNE_HOME": str(Path(folder) / "home")}, uri


class Pages(dict):
    """Page -> address, for browsers that have the cookie.

    Attributes:
        cookie: Name, value and address of its path.
        links: Page -> link that lets in one browser; that to the answer is used.
    """

    cookie = None
    links = None

    def sign_in(self):
        """Use the link to the answer and take the cookie for all of our browsers."""
        self.links = dict(self)
        parts = urllib.parse.urlsplit(self["answer"])
        connection = http.client.HTTPConnection(parts.netloc, timeout=60)
        connection.request("GET", parts.path)
        given = http.cookies.SimpleCookie(connection.getresponse().getheader("set-cookie"))
        connection.close()
        ((name, morsel),) = given.items()
        self.cookie = {"name": name, "value": morsel.value, "url": f"http://{parts.netloc}{morsel['path']}"}
        for page, address in self.items():
            fragment = urllib.parse.urlsplit(address).fragment
            self[page] = self.cookie["url"] + (f"#{fragment}" if fragment else "report.html")


@contextlib.contextmanager
def served(study, uri, environment):
    """`autotune ui` of a study while it is wanted: its `Pages`."""
    command = [*AUTOTUNE, "ui", study, "--no-open", "--tracking-uri", uri]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    lines = queue.Queue()
    reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
    reader.start()
    try:
        pages, until = Pages(), time.monotonic() + START_S
        while "answer" not in pages or not lines.empty() or time.monotonic() < pages["at"] + 1:
            with contextlib.suppress(queue.Empty):
                line = lines.get(timeout=0.2)
                if not line:
                    raise RuntimeError(f"autotune ui ended with {process.wait()}")
                name, address = line.split()
                pages.update({name: address, "at": time.monotonic()})
            if time.monotonic() > until:
                raise TimeoutError("autotune ui shows no page")
        del pages["at"]
        pages.sign_in()
        yield pages
    finally:
        process.terminate()
        process.wait(180)
        reader.join(10)
        process.stdout.close()


def _read(stream, lines):
    for line in stream:
        lines.put(line)
    lines.put("")


def shoot(chromium, pages, out):
    """Pictures of MLflow's pages, its assistant closed.

    Args:
        chromium: The browser's path.
        pages: Of `served`.
        out: Where the pictures go.

    Yields:
        The files.
    """
    for name, page, size, texts in SHOTS:
        with Browser(chromium, *SIZES[size], storage=PANEL_CLOSED, cookie=pages.cookie) as browser:
            browser.open(pages[page])
            browser.wait_for(*texts)
            browser.settle()
            browser.shoot(out / f"{name}.png")
        yield out / f"{name}.png"
