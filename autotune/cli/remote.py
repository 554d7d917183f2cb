"""Searches on a service under the verbs that read a local study: the id decides where a study lies."""

from __future__ import annotations

import io
import os
import tarfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.service.client import Client, Handle


def on_server(name: str | None) -> Handle | None:
    """Return the search of that id on the service; None where the name is not an id, or is a local study's.

    Raises:
        ServiceError: The service does not answer.
        StoreError: It has no such search.
    """
    from autotune.store.paths import home, is_study_id, study_dir

    if not name or not is_study_id(name.upper()) or study_dir(name.upper()).is_dir():
        return None
    from autotune.service.client import SERVER, TOKEN

    if not ({SERVER, TOKEN} & os.environ.keys()) and not (home() / "service" / "token").is_file():
        return None
    return client().search(name.upper())


def client(url: str = "") -> Client:
    """Return a client of the service; the extra ``service`` is named where it is missing.

    Raises:
        UsageError: A package or the token is missing.
    """
    import importlib.util

    from autotune.errors import UsageError

    if importlib.util.find_spec("httpx") is None:
        raise UsageError(
            "a client of the service needs httpx", hint="pip install 'autotune-training[service]'"
        )
    from autotune.service.client import Client

    return Client(url)


def find_study(name: str | None, *, searches: bool = False) -> Path:
    """Return the directory of a study; one of a search on the service is fetched into the home first.

    Raises:
        StudyNotFound: None is called so, here or there.
    """
    from autotune.store import paths

    handle = on_server(name)
    return paths.find_study(name, searches=searches) if handle is None else _fetched(handle)


def _fetched(handle: Handle) -> Path:
    """Fetch the study of a search that has ended, and replace an earlier copy."""
    from autotune.service.archives import extract
    from autotune.store.paths import home

    folder = home() / "fetched" / handle.id
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    data = handle.client.raw("GET", f"/api/v1/searches/{handle.id}/study.tar.gz").content
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        extract(archive, folder)
    return folder


def best_file(name: str) -> str:
    """Return the file of a best.yaml: the one of that name, or that of a search on the service."""
    from pathlib import Path

    handle = None if Path(name).exists() else on_server(name)
    return name if handle is None else str(_kept(handle.id, handle.best))


def registered_file(script_sha256: str, hardware: str) -> str:
    """Return the file of the newest configuration that the service has for a script on this hardware.

    Raises:
        StoreError: It has none.
    """
    found = client().request(
        "GET", "/api/v1/configs", params={"script_sha256": script_sha256, "hardware": hardware}
    )
    return str(_kept(found["search"], found["yaml"]))


def _kept(search_id: str, text: str) -> Path:
    from autotune.export.files import write_whole
    from autotune.store.paths import home, is_study_id

    if not is_study_id(search_id):
        from autotune.errors import StoreError

        raise StoreError("the service names a search by something that is no id")
    path = home() / "fetched" / search_id / "best.yaml"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(path, text, keep=False)
    return path


def event_text(event: dict[str, Any]) -> str:
    """Return one line for an event of a search: what changed, or how a trial ended."""
    trial = event.get("trial")
    if not trial:
        return f"{event['kind']}: {event.get('reason') or event.get('headline') or ''}"
    if "failure" in trial:
        result = trial["failure"]
    else:
        result = f"{trial['speedup']:.2f}x" if trial.get("speedup") else "measured"
    return f"trial {trial['number']} {trial['stage']}: {result}  {trial.get('config') or 'your script'}"


def followed(handle: Handle) -> Any:
    """Yield a line per event of a search until it has ended; equal lines once in a row."""
    last = ""
    for event in handle.events():
        if (text := event_text(event)) != last:
            yield text
        last = text
