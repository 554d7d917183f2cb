"""File redirect: keeps a script's writes off the user's files in Python, if no overlay can be mounted.

Files that Python code opens for writing, creates, renames or deletes below a protected folder are replaced by
copies in the shadow folder, and the script sees its own writes. Other programs that it starts, and libraries
that open files in C, are not covered. The launcher compares the project's files before and after and reports
changes.

Standard library only. `install` is called once, before the script's first line.
"""

from __future__ import annotations

import builtins
import errno
import functools
import io
import os
import shutil
import sqlite3
import stat
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

EXEMPT = ("/dev", "/proc", "/sys", "/run", "/tmp", "/var/tmp")  # noqa: S108 (names, nothing is made there)
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

_NAMES = (
    *("open", "stat", "lstat", "access", "listdir", "scandir", "readlink", "chdir"),
    *("mkdir", "symlink", "link", "mkfifo", "truncate", "chmod", "chown", "utime", "setxattr"),
    *("rmdir", "remove", "unlink", "rename", "replace"),
)
_real = {name: getattr(os, name) for name in _NAMES if hasattr(os, name)}
_real_open = io.open
_MAX_LINKS = 40


def _mode(path: Any, name: str = "stat") -> int:
    try:
        return _real[name](path).st_mode
    except OSError:
        return 0


def _is_dir(path: Any) -> bool:
    return stat.S_ISDIR(_mode(path))


def _is_file(path: Any) -> bool:
    return stat.S_ISREG(_mode(path))


def _is_link(path: Any) -> bool:
    return stat.S_ISLNK(_mode(path, "lstat"))


def _exists(path: str) -> bool:
    return bool(_mode(path, "lstat"))


def _realpath(path: str, depth: int = 0) -> str:
    """Return `os.path.realpath`, computed without the replaced functions of `os`."""
    found = "/"
    for part in os.path.abspath(path).split("/"):
        if not part:
            continue
        step = os.path.join(found, part)
        if depth < _MAX_LINKS and _is_link(step):
            step = _realpath(os.path.join(found, _real["readlink"](step)), depth + 1)
        found = step
    return found


class FileRedirect:
    """Map from the user's paths to the shadow folder, and the set of hidden paths.

    Args:
        protected: Folders whose contents must not change; the longest match of these, `EXEMPT` and the
            trial's
            own folder decides.
        shadow_dir: Folder of the copies; its parent is the trial's own folder.
    """

    def __init__(self, protected: Sequence[str], shadow_dir: str) -> None:
        self.folder = _realpath(shadow_dir)
        roots = {_realpath(p): True for p in protected}
        for path in (*EXEMPT, os.path.dirname(self.folder)):
            roots.setdefault(_realpath(path), False)
        self._roots = sorted(roots.items(), key=lambda item: -len(item[0]))
        self._hidden: set[str] = set()
        self._touched = False
        self._parent = functools.lru_cache(maxsize=4096)(self._resolve)

    def is_ours(self, path: str) -> bool:
        """Return whether this absolute path is in the trial's own folder."""
        return path.startswith(os.path.dirname(self.folder) + "/")

    def covers(self, path: str) -> bool:
        """Return whether this absolute path is protected."""
        for root, protect in self._roots:
            if path == root or path.startswith(root.rstrip("/") + "/"):
                return protect
        return False

    def name(self, path: Any, dir_fd: int | None = None) -> str:
        """Return the absolute path with the links of its folder resolved, and its last part unchanged."""
        text = os.fsdecode(path)
        if dir_fd is not None and not os.path.isabs(text):
            text = os.path.join(_real["readlink"](f"/proc/self/fd/{dir_fd}"), text)
        folder, last = os.path.split(os.path.abspath(text))
        return os.path.join(self._parent(folder), last) if last else folder

    def followed(self, path: Any, dir_fd: int | None = None) -> str:
        """Return the same as `name`, with the last part resolved if it is a link."""
        name = self.name(path, dir_fd)
        return self._resolve(name) if _is_link(self.seen(name)) else name

    def _resolve(self, path: str, depth: int = 0) -> str:
        """Return the `os.path.realpath` that would result if the script's links and removals were real."""
        found = "/"
        for part in os.path.abspath(path).split("/"):
            step = os.path.join(found, part) if part else found
            seen = self.seen(step)
            if depth < _MAX_LINKS and _is_link(seen):
                step = self._resolve(os.path.join(found, _real["readlink"](seen)), depth + 1)
            found = step
        return found

    def links_changed(self) -> None:
        """Clear cached paths after a link or folder was created, moved or removed."""
        self._parent.cache_clear()

    def copy_of(self, name: str) -> str:
        """Return the location of a protected path's copy, existing or not."""
        return self.folder + name

    def hidden(self, name: str) -> bool:
        """Return whether the user's file of this name, or a folder above it, was removed for the script."""
        while self._hidden and name != "/":
            if name in self._hidden:
                return True
            name = os.path.dirname(name)
        return False

    def hide(self, name: str) -> None:
        """Hide the user's file of this name from the script."""
        self._touched = True
        self._hidden.add(name)
        self.links_changed()

    def view(self, path: Any, dir_fd: int | None = None, *, follow: bool = True) -> Any:
        """Return the path to read instead of this one."""
        if not self._touched or isinstance(path, int):
            return path
        found = self.seen(self.followed(path, dir_fd) if follow else self.name(path, dir_fd))
        if dir_fd is None and found == os.path.abspath(os.fsdecode(path)):
            return path
        return os.fsencode(found) if isinstance(path, bytes) else found

    def seen(self, name: str) -> str:
        if not self._touched or not self.covers(name):
            return name
        copy = self.copy_of(name)
        return copy if _exists(copy) or self.hidden(name) else name

    def target(self, name: str, *, copy: bool) -> str:
        """Return the path to write instead of this absolute path.

        Args:
            name: From `name` or `followed`.
            copy: Copy the present contents.
        """
        if not self.covers(name):
            return name
        shadow = self.copy_of(name)
        folder = os.path.dirname(name)
        if not _is_dir(self.seen(folder)):
            return shadow
        self._touched = True
        self._make_folders(os.path.dirname(shadow))
        if copy and not _exists(shadow) and not self.hidden(name) and _exists(name):
            self.copy(name, shadow)
        return shadow

    def _make_folders(self, folder: str) -> None:
        if not _is_dir(folder):
            self._make_folders(os.path.dirname(folder))
            _real["mkdir"](folder)

    def copy(self, source: str, target: str) -> None:
        """Copy a file, a link, or the missing contents of a folder."""
        if _is_link(source):
            _real["symlink"](_real["readlink"](source), target)
        elif _is_dir(source):
            if not _is_dir(target):
                _real["mkdir"](target)
            for entry in _real["listdir"](source):
                inner = os.path.join(target, entry)
                name = os.path.join(source, entry)
                if not _exists(inner) and not self.hidden(name):
                    self.copy(name, inner)
        else:
            with _real_open(source, "rb") as old, _real_open(target, "wb") as new:
                shutil.copyfileobj(old, new, 1 << 20)
            _real["chmod"](target, _real["stat"](source).st_mode & 0o7777 | 0o200)

    def whole(self, name: str) -> str:
        """Return a complete copy of a protected file or folder, so that it can be moved."""
        shadow = self.target(name, copy=True)
        if _is_dir(shadow) and not self.hidden(name) and _is_dir(name):
            self.copy(name, shadow)
        return shadow

    def entries(self, name: str) -> dict[str, str]:
        """Return name -> real path for the contents of a folder as visible to the script."""
        found: dict[str, str] = {}
        if not self.hidden(name):
            try:
                found = {e: os.path.join(name, e) for e in _real["listdir"](name)}
            except (FileNotFoundError, NotADirectoryError):
                if not _is_dir(self.copy_of(name)):
                    raise
            found = {e: p for e, p in found.items() if p not in self._hidden}
        elif not _is_dir(self.copy_of(name)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        if _is_dir(self.copy_of(name)):
            for entry in _real["listdir"](self.copy_of(name)):
                found[entry] = os.path.join(self.copy_of(name), entry)
        return found

    def mixed(self, path: Any) -> str | None:
        """Return the absolute name of a folder whose listing must be merged; None if no merge is needed."""
        if not self._touched or isinstance(path, int):
            return None
        name = self.followed("." if path is None else path)
        return name if self.covers(name) and (_exists(self.copy_of(name)) or self._hidden) else None


class _Entry:
    """An `os.DirEntry` with the path as visible to the script, and contents that may be elsewhere."""

    def __init__(self, shadow: FileRedirect, folder: Any, name: str, place: str) -> None:
        bytes_wanted = isinstance(folder, bytes)
        self.name: Any = os.fsencode(name) if bytes_wanted else name
        self.path: Any = os.path.join(os.fspath(folder), self.name)
        self._shadow = shadow
        self._place = place

    def _at(self, follow: bool) -> str:
        if follow and _is_link(self._place):
            return str(self._shadow.view(os.fsdecode(self.path)))
        return self._place

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return _is_dir(self._at(follow_symlinks)) and (follow_symlinks or not _is_link(self._place))

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return _is_file(self._at(follow_symlinks)) and (follow_symlinks or not _is_link(self._place))

    def is_symlink(self) -> bool:
        return _is_link(self._place)

    def is_junction(self) -> bool:
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return _real["stat"](self._at(follow_symlinks), follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        return _real["lstat"](self._place).st_ino


class _Scan:
    """Return value of `os.scandir`: an iterator and a context manager."""

    def __init__(self, entries: Iterator[_Entry]) -> None:
        self._entries = entries

    def __iter__(self) -> _Scan:
        return self

    def __next__(self) -> _Entry:
        return next(self._entries)

    def __enter__(self) -> _Scan:  # noqa: PYI034 (typing.Self came with Python 3.11)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


_installed: FileRedirect | None = None


def install(protected: Sequence[str], shadow_dir: str) -> FileRedirect:
    """Redirect this process's writes below `protected` to `shadow_dir`, for the rest of its life.

    Args:
        protected: Absolute folders; ``/`` protects all but `EXEMPT`.
        shadow_dir: An existing folder in the trial's own folder.
    """
    global _installed
    shadow = FileRedirect(protected, shadow_dir)
    _installed = shadow
    sys.dont_write_bytecode = True
    # The variant for directory descriptors bypasses paths.
    shutil._use_fd_functions = False  # pyright: ignore[reportAttributeAccessIssue]
    replaced = {**_readers(shadow), **_makers(shadow), **_movers(shadow)}
    for name, function in replaced.items():
        setattr(os, name, functools.wraps(_real[name])(function))
    opener = _opener(shadow)
    builtins.open = opener
    io.open = opener
    io.FileIO = _file_class(shadow)
    sqlite3.connect = _wrapped_path(sqlite3.connect, "database", shadow, write=True)
    _patch_pathlib(replaced, opener)
    return shadow


def wrap_torch(torch: Any) -> None:
    """Redirect paths that torch writes and reads in C++; do nothing before `install`."""
    if _installed is None:
        return
    torch.save = _wrapped_path(torch.save, "f", _installed, write=True, position=1)
    torch.load = _wrapped_path(torch.load, "f", _installed, write=False)
    torch.serialization.save = torch.save
    torch.serialization.load = torch.load
    if hasattr(torch, "jit"):
        for kind in ("RecursiveScriptModule", "ScriptFunction"):
            owner: Any = getattr(torch.jit, kind, None)
            if owner is not None and hasattr(owner, "save"):
                owner.save = _wrapped_path(owner.save, "f", _installed, write=True, position=1)
        torch.jit.save = _wrapped_path(torch.jit.save, "f", _installed, write=True, position=1)
        torch.jit.load = _wrapped_path(torch.jit.load, "f", _installed, write=False)


def wrap_safetensors(module: Any) -> None:
    """Redirect paths that ``safetensors.torch`` writes and reads in Rust."""
    if _installed is None:
        return
    module.save_file = _wrapped_path(module.save_file, "filename", _installed, write=True, position=1)
    module.load_file = _wrapped_path(module.load_file, "filename", _installed, write=False)
    package = sys.modules.get("safetensors")
    for owner in (package, module):
        reader = getattr(owner, "safe_open", None)
        if reader is not None:
            opened = _wrapped_path(reader, "filename", _installed, write=False)
            setattr(owner, "safe_open", opened)  # noqa: B010 (a module that need not be installed)


def _wrapped_path(
    function: Callable[..., Any], keyword: str, shadow: FileRedirect, *, write: bool, position: int = 0
) -> Callable[..., Any]:
    def place(path: Any) -> Any:
        if not isinstance(path, (str, os.PathLike)) or os.fspath(path) in (":memory:", ""):
            return path
        if isinstance(path, str) and path.startswith("file:"):
            return path
        return shadow.target(shadow.followed(path), copy=True) if write else shadow.view(path)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if len(args) > position:
            args = (*args[:position], place(args[position]), *args[position + 1 :])
        elif keyword in kwargs:
            kwargs[keyword] = place(kwargs[keyword])
        return function(*args, **kwargs)

    return wrapper


def _patch_pathlib(replaced: dict[str, Callable[..., Any]], opener: Callable[..., Any]) -> None:
    """Replace functions that pathlib stores at import: all in Python 3.10, those of `rglob` from 3.13 on."""
    keepers = [
        getattr(sys.modules.get("pathlib"), "_NormalAccessor", None),
        getattr(sys.modules.get("glob"), "_StringGlobber", None),
    ]
    for keeper in keepers:
        for name, function in {**replaced, "open": opener}.items():
            if hasattr(keeper, name):
                setattr(keeper, name, staticmethod(function))


def _opener(shadow: FileRedirect) -> Callable[..., Any]:
    @functools.wraps(_real_open)
    def open_(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        return _real_open(_opened(shadow, file, mode), mode, *args, **kwargs)

    return open_


def _opened(shadow: FileRedirect, file: Any, mode: str) -> Any:
    """Return the path or descriptor to open instead of this file."""
    if isinstance(file, int):
        return file
    if not set(mode) & set("wax+"):
        return shadow.view(file)
    name = shadow.followed(file)
    if "x" in mode and shadow.covers(name) and _exists(shadow.seen(name)):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), file)
    return shadow.target(name, copy="w" not in mode)


def _file_class(shadow: FileRedirect) -> Any:
    """Return `io.FileIO` with redirected paths; files opened by C code still are instances of it."""
    real = io.FileIO

    class Kind(type(real)):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, real) if cls is FileIO else super().__instancecheck__(instance)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, real) if cls is FileIO else super().__subclasscheck__(subclass)

    class FileIO(real, metaclass=Kind):
        def __init__(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> None:
            super().__init__(_opened(shadow, file, mode), mode, *args, **kwargs)

    FileIO.__qualname__, FileIO.__module__, FileIO.__doc__ = "FileIO", real.__module__, real.__doc__
    return FileIO


def _readers(shadow: FileRedirect) -> dict[str, Callable[..., Any]]:
    def reader(name: str) -> Callable[..., Any]:
        real = _real[name]

        def function(path: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> Any:
            follow = name in ("stat", "access") and kwargs.get("follow_symlinks", True)
            seen = shadow.view(path, dir_fd, follow=follow)
            return real(seen, *args, **({} if dir_fd is None else {"dir_fd": dir_fd}), **kwargs)

        return function

    def listdir(path: Any = None) -> Any:
        name = shadow.mixed(path)
        if name is None:
            return _real["listdir"](path)
        names = list(shadow.entries(name))
        return [os.fsencode(n) for n in names] if isinstance(path, bytes) else names

    def scandir(path: Any = None) -> Any:
        name = shadow.mixed(path)
        if name is None:
            return _real["scandir"](path)
        folder = "." if path is None else path
        return _Scan(iter([_Entry(shadow, folder, n, p) for n, p in shadow.entries(name).items()]))

    def chdir(path: Any) -> None:
        seen = path if isinstance(path, int) or (_is_dir(path) and not shadow.covers(path)) else None
        if seen is None:
            # The user's own folder, if it exists, keeps relative paths valid.
            name = shadow.name(path)
            exists = isinstance(path, (str, bytes, os.PathLike)) and not shadow.hidden(name) and _exists(name)
            seen = path if exists else shadow.view(path)
        _real["chdir"](seen)

    plain = {name: reader(name) for name in ("stat", "lstat", "access", "readlink")}
    return {**plain, "listdir": listdir, "scandir": scandir, "chdir": chdir}


def _makers(shadow: FileRedirect) -> dict[str, Callable[..., Any]]:
    def open_(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if not flags & _WRITE_FLAGS or flags & getattr(os, "O_TMPFILE", 0) == getattr(os, "O_TMPFILE", -1):
            return _real["open"](shadow.view(path, dir_fd), flags, mode, dir_fd=dir_fd)
        name = shadow.followed(path, dir_fd)
        if not shadow.covers(name):
            return _real["open"](path, flags, mode, dir_fd=dir_fd)
        if flags & os.O_EXCL and _exists(shadow.seen(name)):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        return _real["open"](shadow.target(name, copy=not flags & os.O_TRUNC), flags, mode)

    def mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        name = shadow.name(path, dir_fd)
        if not shadow.covers(name):
            _real["mkdir"](path, mode, dir_fd=dir_fd)
            return
        if _exists(shadow.seen(name)):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        _real["mkdir"](shadow.target(name, copy=False), mode)

    def symlink(src: Any, dst: Any, target_is_directory: bool = False, *, dir_fd: int | None = None) -> None:
        name = shadow.name(dst, dir_fd)
        if not shadow.covers(name):
            _real["symlink"](src, dst, target_is_directory, dir_fd=dir_fd)
            return
        if _exists(shadow.seen(name)):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), dst)
        _real["symlink"](src, shadow.target(name, copy=False))
        shadow.links_changed()

    def link(src: Any, dst: Any, **kwargs: Any) -> None:
        source, name = shadow.name(src, kwargs.get("src_dir_fd")), shadow.name(dst, kwargs.get("dst_dir_fd"))
        if not shadow.covers(name) and not shadow.covers(source):
            _real["link"](src, dst, **kwargs)
            return
        if _exists(shadow.seen(name)):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), dst)
        shutil.copyfile(shadow.seen(source), shadow.target(name, copy=False))

    def mkfifo(path: Any, mode: int = 0o666, *, dir_fd: int | None = None) -> None:
        _real["mkfifo"](shadow.target(shadow.name(path, dir_fd), copy=False), mode)

    def changer(name: str) -> Callable[..., Any]:
        real = _real[name]

        def function(path: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> Any:
            if not isinstance(path, int):
                named = shadow.followed(path, dir_fd)
                if shadow.covers(named):
                    return real(shadow.target(named, copy=True), *args, **kwargs)
            return real(path, *args, **({} if dir_fd is None else {"dir_fd": dir_fd}), **kwargs)

        return function

    changed = {name: changer(name) for name in ("truncate", "chmod", "chown", "utime", "setxattr")}
    return {**changed, "open": open_, "mkdir": mkdir, "symlink": symlink, "link": link, "mkfifo": mkfifo}


def _movers(shadow: FileRedirect) -> dict[str, Callable[..., Any]]:
    def remove(path: Any, *, dir_fd: int | None = None) -> None:
        name = shadow.name(path, dir_fd)
        if not shadow.covers(name):
            _real["unlink"](path, dir_fd=dir_fd)
            return
        seen = shadow.seen(name)
        if seen != name:
            _real["unlink"](seen)
            shadow.links_changed()
        elif not _exists(name):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        elif _is_dir(name) and not _is_link(name):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if _exists(name):
            shadow.hide(name)

    def rmdir(path: Any, *, dir_fd: int | None = None) -> None:
        name = shadow.name(path, dir_fd)
        if not shadow.covers(name):
            _real["rmdir"](path, dir_fd=dir_fd)
            return
        if shadow.entries(name):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        if _exists(shadow.copy_of(name)):
            _real["rmdir"](shadow.copy_of(name))
        if _exists(name):
            shadow.hide(name)

    def replace(src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        source, target = shadow.name(src, src_dir_fd), shadow.name(dst, dst_dir_fd)
        if not shadow.covers(source) and not shadow.covers(target):
            if shadow.is_ours(source) or shadow.is_ours(target):
                # Without the redirect the script would have had a folder on another disk.
                _move(shadow, source, target)
            else:
                _real["replace"](src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            return
        if not _exists(shadow.seen(source)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), src)
        seen = shadow.seen(target)
        if _is_dir(seen) and not _is_link(seen) and shadow.covers(target) and shadow.entries(target):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), dst)
        moved = shadow.whole(source) if shadow.covers(source) else source
        _move(shadow, moved, shadow.target(target, copy=False))
        if shadow.covers(source) and _exists(source):
            shadow.hide(source)
        if shadow.covers(target) and _exists(target):
            shadow.hide(target)
        shadow.links_changed()

    return {"remove": remove, "unlink": remove, "rmdir": rmdir, "rename": replace, "replace": replace}


def _move(shadow: FileRedirect, source: str, target: str) -> None:
    try:
        _real["replace"](source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        if _exists(target):
            _delete(target)
        shadow.copy(source, target)
        _delete(source)


def _delete(path: str) -> None:
    if not _is_dir(path) or _is_link(path):
        _real["unlink"](path)
        return
    for name in _real["listdir"](path):
        _delete(os.path.join(path, name))
    _real["rmdir"](path)
