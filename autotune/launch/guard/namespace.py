"""Mount namespace in which every write to a real file system lands in one folder.

The whole file tree is overlaid: the root and each further real, writable mount. Pseudo file systems and
device nodes are not changed. Paths are the same inside and outside, reads pass through, and each write,
rename or deletion goes to the upper layer. Folders in ``keep`` stay writable. A trial gets its own shared
memory, including System V, unless it uses existing objects.

Linux refuses an upper layer below its own lower layer. Then the lower layer is first mounted read-only as a
separate overlay, which is another file system to the kernel. If that is refused too (a container's root is an
overlay already), the upper layer goes to memory.

If the kernel allows it, existing folders can be renamed, hard links stay links and inode numbers do not
change. In a user namespace only the last of these is possible (decision 109).

Standard library only, and nothing of autotune but this folder: the guard loads it by path under ``python -S
-E``.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import stat

if __package__:
    from autotune.launch.guard import sysv_ipc
else:
    import sysv_ipc  # pyright: ignore[reportMissingImports]

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWIPC = 0x08000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 1, 2, 4, 8, 32
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_MNT_DETACH = 2
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

_PSEUDO = frozenset(
    (
        *("proc", "sysfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "securityfs", "debugfs", "tracefs"),
        *("pstore", "bpf", "configfs", "fusectl", "hugetlbfs", "mqueue", "binfmt_misc", "efivarfs", "autofs"),
        *("rpc_pipefs", "nsfs", "selinuxfs", "nfsd", "ramfs", "fuse.gvfsd-fuse", "fuse.portal", "fuse.lxcfs"),
    )
)
_SYSTEM = ("/proc", "/sys", "/dev", "/run")
_LIKE_WITHOUT = ("redirect_dir=on", "index=on")
"""Options of an overlay: existing folders can be renamed, hard links stay links."""
_OF_TWO_DISKS = "xino=on"
"""Device and inode numbers do not change if a file is copied from one disk to another."""
_READABLE_BY_HANDLE = ("nfs_export=on,redirect_dir=nofollow", "")
"""Options of a read-only overlay, needed for hard links in an overlay above it."""
_MEMORY_SHARE = 4
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 (mount point, not a temporary file)
_OF_PROCESSES = ("torch_", "nccl-", "sem.mp-", "__KMP_REGISTERED_LIB_", "autotune-replay-")
"""Prefixes of names that torch, NCCL, Python, OpenMP and replays use within their own processes."""
_MOST_SHARED = 64
_COPY_BYTES = 16 * 1024 * 1024
NOTE = ".of"
"""Suffix of the file beside an upper layer that holds the path of its lower layer."""

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    result = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        os.fsencode(data) if data else None,
    )
    _check(result, f"mount {target}")


def mounts(text: str) -> list[tuple[str, str]]:
    """Return (mount point, file system type) from ``mountinfo``, parents first, topmost only."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) < 6 or not right:
            continue
        point = (
            fields[4].encode().decode("unicode_escape").encode("latin-1").decode("utf-8", "surrogateescape")
        )
        found.pop(point, None)
        found[point] = right.split(" ")[0]
    return list(found.items())


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def own_ipc() -> None:
    """Give this process its own System V objects, if no user namespace is needed and none are in use."""
    if not sysv_ipc.own():
        _libc.unshare(_CLONE_NEWIPC)


def _own_namespace(further: int = 0) -> bool:
    """Enter a mount namespace, and further ones if possible; return True if a user namespace was needed."""
    if _libc.unshare(_CLONE_NEWNS | further) == 0 or _libc.unshare(_CLONE_NEWNS) == 0:
        return False
    uid, gid = os.geteuid(), os.getegid()
    kinds = _CLONE_NEWNS | _CLONE_NEWUSER
    if _libc.unshare(kinds | further) != 0:
        _check(_libc.unshare(kinds), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    return True


class _Layers:
    """Upper layers: in the trial's folder, or in memory if its file system cannot hold one."""

    def __init__(self, base: str, *, user: bool) -> None:
        self.base = base
        self.user = user
        self.count = 0
        self.in_memory = False
        self.over: list[str] = []
        """Targets overlaid so far."""

    def _folders(self, *, memory: bool) -> list[str]:
        base = os.path.join(self.base, "memory") if memory else self.base
        made = [os.path.join(base, kind, str(self.count)) for kind in ("upper", "work", "lower")]
        for folder in made:
            os.makedirs(folder, exist_ok=True)
        return made

    def _options(self, lower: str, upper: str = "", work: str = "") -> str:
        for path in (lower, upper, work):
            if "," in path or "\\" in path:
                raise OSError(errno.EINVAL, f"no overlay over a path with a comma or backslash: {path}")
        text = "lowerdir=" + lower.replace(":", "\\:")
        if upper:
            text += f",upperdir={upper},workdir={work}"
        else:
            text += ":" + self._empty().replace(":", "\\:")
        return text + (",userxattr" if self.user else "")

    def _empty(self) -> str:
        """Return an empty folder on a separate file system, as no layer may lie below another one."""
        folder = os.path.join(self.base, "empty")
        if not os.path.isdir(folder):
            os.makedirs(folder)
            _mount("autotune", folder, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=4k,mode=0700")
        return folder

    def overlay(self, lower: str, target: str) -> None:
        """Mount an overlay of `lower` at `target`, with the first options that the kernel accepts."""
        self._overlay(lower, target)
        self.over.append(lower)

    def _overlay(self, lower: str, target: str) -> None:
        self.count += 1
        if not self.in_memory:
            upper, work, middle = self._folders(memory=False)
            try:
                self._writable(lower, upper, work, target)
                self.note(lower)
                return
            except OSError:
                pass
            try:
                self._mount_first(middle, self._options(lower), _READABLE_BY_HANDLE, _MS_RDONLY)
                self._writable(middle, upper, work, target)
                self.note(lower)
                return
            except OSError:
                pass
            self._to_memory()
        upper, work, _ = self._folders(memory=True)
        self._writable(lower, upper, work, target)

    def _mount_first(self, target: str, options: str, choices: tuple[str, ...], flags: int = 0) -> None:
        """Mount an overlay with the first of these further options that the kernel accepts."""
        for choice in choices:
            try:
                _mount("autotune", target, "overlay", flags, options + (f",{choice}" if choice else ""))
            except OSError:
                if choice == choices[-1]:
                    raise
            else:
                return

    def note(self, lower: str) -> None:
        """Write the path of the lower layer beside the last upper layer, for later inspection."""
        if not self.in_memory:
            try:
                name = os.path.join(self.base, "upper", f"{self.count}{NOTE}")
                with open(name, "w", encoding="utf-8", errors="surrogateescape") as file:
                    file.write(lower)
            except OSError:
                return

    def _writable(self, lower: str, upper: str, work: str, target: str) -> None:
        status = os.stat(lower)
        os.chmod(upper, status.st_mode & 0o7777)
        if not self.user:
            os.chown(upper, status.st_uid, status.st_gid)
        options = () if self.user else _LIKE_WITHOUT
        options += () if status.st_dev == os.stat(upper).st_dev else (_OF_TWO_DISKS,)
        choices = (",".join(options), "") if options else ("",)
        self._mount_first(target, self._options(lower, upper, work), choices)
        if os.access(lower, os.W_OK):
            probe = os.path.join(target, f".autotune-{os.getpid()}")
            try:
                with open(probe, "w"):
                    os.unlink(probe)
            except OSError:
                _libc.umount2(os.fsencode(target), _MNT_DETACH)
                raise

    def _to_memory(self) -> None:
        folder = os.path.join(self.base, "memory")
        os.makedirs(folder, exist_ok=True)
        size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _MEMORY_SHARE
        _mount("autotune", folder, "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={size},mode=0700")
        self.in_memory = True


def _bind(source: str, target: str, *, recursive: bool, read_only: bool = False) -> None:
    _mount(source, target, None, _MS_BIND | (_MS_REC if recursive else 0))
    if read_only:
        have = _flags(os.statvfs(source).f_flag)
        _mount("none", target, None, _MS_BIND | _MS_REMOUNT | _MS_RDONLY | have)


def _flags(have: int) -> int:
    """Return the restrictions of a mount from `statvfs` as flags of `mount`."""
    flags = 0
    for flag, reported in (
        (_MS_NOSUID, os.ST_NOSUID),
        (_MS_NODEV, os.ST_NODEV),
        (_MS_NOEXEC, os.ST_NOEXEC),
    ):
        flags |= flag if have & reported else 0
    return flags


def enter(
    base: str,
    keep: list[str],
    must: list[str],
    *,
    shares: bool = False,
    temporary: str = "",
    beside: str = "",
) -> None:
    """Move this process into the namespace; this cannot be undone.

    Args:
        base: Existing folder for the layers; inside one of `keep`.
        keep: Folders that stay writable.
        must: Folders that must be protected; a failure to do so is an error.
        shares: Keep the machine's shared memory, for processes outside.
        temporary: Folder for temporary files; empty: none.
        beside: Folder on the same disk. Files of `temporary` can be renamed and linked into it, as outside.

    Raises:
        OSError: The kernel, or a policy of the machine, does not allow it.
    """
    cwd = os.getcwd()
    table = mounts(_text("/proc/self/mountinfo"))
    user = _own_namespace(0 if shares or sysv_ipc.own() else _CLONE_NEWIPC)
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    layers = _Layers(base, user=user)
    root = os.path.join(base, "root")
    os.makedirs(root, exist_ok=True)
    if user:
        _mount("autotune", root, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=0755")
        _compose("/", root, layers, dict(table), must)
    else:
        layers.overlay("/", root)
        for point, kind in table:
            if point != "/":
                _carry_over(point, kind, root, layers, must)
    if temporary and not _has_beside(root, temporary, beside, layers):
        keep = [*keep, temporary]
    for folder in keep:
        os.makedirs(root + folder, exist_ok=True)
        _bind(folder, root + folder, recursive=False)
    if not shares and dict(table).get(_SHARED_MEMORY) == "tmpfs":
        _own_shared_memory(root + _SHARED_MEMORY, must)
    _change_root(root)
    os.chdir(cwd)


def _has_beside(root: str, temporary: str, beside: str, layers: _Layers) -> bool:
    """Put both folders into one overlay; return False if that is not possible.

    If each is in a separate overlay, the first becomes a link to a hidden folder in the other's.
    """
    if not beside or layers.in_memory:
        return False
    try:
        if os.stat(root + temporary).st_dev == os.stat(root + beside).st_dev:
            return True
        top = max((path for path in layers.over if _inside(beside, path)), key=len)
        hidden = os.path.join(top, f".{os.path.basename(temporary)}")
        os.mkdir(root + hidden, 0o700)
        for name in os.listdir(temporary):
            os.mkdir(os.path.join(root + hidden, name), 0o700)
        # It may be a separate overlay.
        _libc.umount2(os.fsencode(root + temporary), _MNT_DETACH)
        for name in os.listdir(root + temporary):
            os.rmdir(os.path.join(root + temporary, name))
        os.rmdir(root + temporary)
        os.symlink(hidden, root + temporary)
    except (OSError, ValueError):
        return False
    return True


def _own_shared_memory(target: str, must: list[str]) -> None:
    """Mount shared memory that ends with the last process inside, as large as the machine's.

    The machine's is retained if that is not possible, or if it holds objects of this user, as a script may
    replace or remove those, which is refused for mounts. Objects of other users are visible as before.
    """
    if any(_inside(path, _SHARED_MEMORY) or _inside(_SHARED_MEMORY, path) for path in must):
        return
    try:
        with os.scandir(_SHARED_MEMORY) as entries:
            others = [e for e in entries if not e.name.startswith(_OF_PROCESSES)]
        mine = [e for e in others if e.stat(follow_symlinks=False).st_uid == os.geteuid()]
        if mine or len(others) > _MOST_SHARED:
            return
        have, mode = os.statvfs(_SHARED_MEMORY), os.stat(_SHARED_MEMORY).st_mode & 0o7777
        size = f"size={have.f_blocks * have.f_frsize},nr_inodes={have.f_files},mode={mode:o}"
        _mount("autotune", target, "tmpfs", _flags(have.f_flag), size)
    except OSError:
        return
    try:
        for entry in others:
            _expose(entry, os.path.join(target, entry.name))
    except OSError:
        _libc.umount2(os.fsencode(target), _MNT_DETACH)


def _expose(entry: os.DirEntry[str], target: str) -> None:
    if entry.is_symlink():
        os.symlink(os.readlink(entry.path), target)
        return
    if entry.is_dir():
        os.mkdir(target)
    else:
        with open(target, "w"):
            pass
    _bind(entry.path, target, recursive=True)


def _carry_over(point: str, kind: str, root: str, layers: _Layers, must: list[str]) -> None:
    target = root + point
    try:
        read_only = bool(os.statvfs(point).f_flag & os.ST_RDONLY)
        folder = os.path.isdir(point)
        if not os.path.exists(target):
            return
    except OSError:
        return
    system = any(_inside(point, top) for top in _SYSTEM)
    if kind in _PSEUDO or (system and kind == "tmpfs"):
        _bind_or_pass(point, target)
    elif read_only or not folder:
        _bind_or_pass(point, target, read_only=True)
    else:
        try:
            layers.overlay(point, target)
        except OSError:
            if any(_inside(path, point) for path in must):
                raise
            _bind(point, target, recursive=True, read_only=True)


def _compose(folder: str, target: str, layers: _Layers, table: dict[str, str], must: list[str]) -> None:
    """Rebuild the same tree from its parts.

    A user namespace may not overlay a folder with mounts below it, since that could reveal hidden files. So
    such folders are created again and their entries handled one by one.
    """
    for entry in os.scandir(folder):
        try:
            _compose_entry(entry, os.path.join(target, entry.name), layers, table, must)
        except FileNotFoundError:
            # In a world-writable folder, other users' files appear and disappear.
            if os.path.lexists(entry.path):
                raise


def _compose_entry(
    entry: os.DirEntry[str], target: str, layers: _Layers, table: dict[str, str], must: list[str]
) -> None:
    if entry.is_symlink():
        os.symlink(os.readlink(entry.path), target)
    elif entry.is_dir():
        os.mkdir(target)
        _compose_folder(entry.path, target, layers, table, must)
    else:
        _compose_file(entry.path, target)


def _compose_folder(path: str, target: str, layers: _Layers, table: dict[str, str], must: list[str]) -> None:
    below = any(point != path and _inside(point, path) for point in table)
    # A copy to the upper layer retains the owners of its parent folders, and foreign owners cannot be
    # expressed here.
    foreign = os.stat(path).st_uid != os.geteuid() and any(p != path and _inside(p, path) for p in must)
    if table.get(path) in _PSEUDO or (below and path in _SYSTEM) or (path == "/run" and path in table):
        _bind(path, target, recursive=True)
        return
    try:
        if below or foreign:
            _compose(path, target, layers, table, must)
        else:
            layers.overlay(path, target)
    except OSError:
        if any(_inside(place, path) or _inside(path, place) for place in must):
            raise
        _bind(path, target, recursive=True, read_only=True)


def _compose_file(path: str, target: str) -> None:
    try:
        status = os.stat(path)
        if stat.S_ISREG(status.st_mode) and status.st_size <= _COPY_BYTES:
            shutil.copy2(path, target)
            return
    except OSError:
        pass
    with open(target, "w"):
        pass
    _bind(path, target, recursive=False, read_only=stat.S_ISREG(os.stat(path).st_mode))


def _bind_or_pass(point: str, target: str, *, read_only: bool = False) -> None:
    try:
        _bind(point, target, recursive=not read_only)
    except OSError:
        _bind(point, target, recursive=True)
    if read_only:
        try:
            _bind(target, target, recursive=True, read_only=True)
        except OSError:
            if not os.statvfs(target).f_flag & os.ST_RDONLY:
                raise


def _change_root(root: str) -> None:
    os.chdir(root)
    number = _SYS_PIVOT_ROOT.get(os.uname().machine)
    if number is not None and _libc.syscall(number, b".", b".") == 0:
        _check(_libc.umount2(b".", _MNT_DETACH), "umount old root")
    else:
        os.chroot(".")
    os.chdir("/")


def remove(place: str) -> None:
    """Delete a file or folder of autotune, including the kernel's protected work folders; never raises.

    If a trial has put a link in its place, only the link is removed.
    """
    if os.path.islink(place) or os.path.isfile(place):
        with contextlib.suppress(OSError):
            os.unlink(place)
        return
    for folder, names, _ in os.walk(place):
        for name in names:
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                with contextlib.suppress(OSError):
                    os.chmod(path, 0o700)
    shutil.rmtree(place, ignore_errors=True)


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()
