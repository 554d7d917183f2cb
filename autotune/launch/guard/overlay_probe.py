"""Probe that tries whether an overlay protects the user's files, and what it cannot do there.

Runs as a separate process, ``python -S -E probe.py BASE REQUEST``, with a request as JSON. It reports one
JSON object on standard output, and nothing if no overlay can be mounted.

Standard library only, and nothing of autotune but this folder.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from dataclasses import asdict, dataclass

if __package__:
    from autotune.launch.guard import namespace
else:
    import namespace  # pyright: ignore[reportMissingImports]

SKIPPED = frozenset({".git", "__pycache__", "node_modules", ".venv", "venv"})
MOST_SCANNED = 20_000
SCAN_S = 3.0
"""Limit for a tree on a slow file server; a path missed here shows by a trial's failure."""


@dataclass(frozen=True, slots=True)
class ProbeFile:
    """One path of a kind that this user may write to."""

    path: str
    uid: int
    gid: int
    is_folder: bool


def samples(trees: list[str]) -> list[ProbeFile]:
    """Return a path of every kind in these folders that this user may write to.

    Kinds differ in owner, group, file type, and the owners of parent folders, which an overlay copies first.
    """
    found: dict[tuple[object, ...], ProbeFile] = {}
    until_s = time.monotonic() + SCAN_S
    waiting: list[tuple[str, frozenset[tuple[int, int]]]] = [(tree, frozenset()) for tree in trees]
    for tree, above in waiting:
        _take(found, tree, os.stat(tree), above)
    scanned = 0
    while waiting and scanned < MOST_SCANNED and time.monotonic() < until_s:
        folder, above = waiting.pop()
        try:
            entries = [(entry.path, entry.stat(follow_symlinks=False)) for entry in os.scandir(folder)]
        except OSError:
            continue
        scanned += len(entries)
        for path, status in entries:
            if stat.S_ISLNK(status.st_mode) or os.path.basename(path) in SKIPPED:
                continue
            _take(found, path, status, above)
            if stat.S_ISDIR(status.st_mode):
                waiting.append((path, above | {(status.st_uid, status.st_gid)}))
    return list(found.values())


def _take(
    found: dict[tuple[object, ...], ProbeFile],
    path: str,
    status: os.stat_result,
    above: frozenset[tuple[int, int]],
) -> None:
    is_folder = stat.S_ISDIR(status.st_mode)
    kind = (status.st_uid, status.st_gid, is_folder, above)
    if kind not in found and os.access(path, os.W_OK | (os.X_OK if is_folder else 0)):
        found[kind] = ProbeFile(path, status.st_uid, status.st_gid, is_folder)


def first_unwritable(tried: list[ProbeFile]) -> ProbeFile | None:
    """Return the first path that is writable outside but not here; None if all are.

    Files are not opened, since an overlay would copy them whole. A file whose owner or group has no number in
    this user namespace cannot be copied.
    """
    for sample in tried:
        status = os.lstat(sample.path)
        if (status.st_uid, status.st_gid) != (sample.uid, sample.gid):
            return sample
        if sample.is_folder:
            made = os.path.join(sample.path, f".autotune-{os.getpid()}")
            try:
                os.close(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
                os.unlink(made)
            except OSError:
                return sample
    return None


def probe(base: str, must: list[str], trees: list[str]) -> dict[str, object]:
    """Try an overlay below `base`, without writing to the user's files.

    Args:
        base: An empty folder.
        must: Folders that the overlay has to protect.
        trees: Folders that a trial must be able to write to as outside.

    Returns:
        ``protects``, whether writes stay inside; ``unwritable``, a `ProbeFile` or None; ``moves``, whether
        existing folders can be renamed.

    Raises:
        OSError: The kernel, or a policy of the machine, does not allow an overlay.
    """
    trial, user = os.path.join(base, "trial"), os.path.join(base, "user")
    kept, made = os.path.join(user, "kept.txt"), os.path.join(user, "made.txt")
    os.makedirs(trial)
    os.makedirs(os.path.join(user, "folder"))
    with open(kept, "w") as file:
        file.write("before")
    tried = samples(trees)
    outside = os.open(base, os.O_RDONLY | os.O_DIRECTORY)
    before = {folder: os.stat(folder).st_dev for folder in must}
    namespace.enter(trial, [trial], [user, *must])
    # The same folder as outside is on the same file system; an overlay is a separate one.
    protected = all(os.stat(folder).st_dev != device for folder, device in before.items())
    with open(kept, "a") as file:
        file.write(" after")
    with open(made, "w") as file:
        file.write("new")
    with open(os.path.join(trial, "real.txt"), "w") as file:
        file.write("real")
    with open(kept) as file, open(made) as other:
        inside = file.read() == "before after" and other.read() == "new" and os.path.exists("/proc/self/stat")
    with open(os.open("user/kept.txt", os.O_RDONLY, dir_fd=outside)) as file:
        untouched = file.read() == "before"
    gone = "made.txt" not in os.listdir(os.open("user", os.O_RDONLY, dir_fd=outside))
    real = os.stat("trial/real.txt", dir_fd=outside).st_size == 4
    unwritable = first_unwritable(tried)
    return {
        "protects": protected and inside and untouched and gone and real,
        "unwritable": None if unwritable is None else asdict(unwritable),
        "moves": _moves(os.path.join(user, "folder")),
    }


def _moves(folder: str) -> bool:
    try:
        os.rename(folder, folder + "-moved")
    except OSError:
        return False
    return True


if __name__ == "__main__":
    try:
        found = probe(sys.argv[1], **json.loads(sys.argv[2]))
    except OSError as error:
        sys.exit(str(error))
    sys.stdout.write(json.dumps(found))
