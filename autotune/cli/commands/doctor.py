"""`autotune doctor`."""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import asdict, dataclass
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.options import Json
from autotune.errors import BackendError, StoreError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from urllib.request import Request

    from autotune.model.facts import HostFacts

PACKAGES = (
    "torch",
    "ray",
    "optuna",
    "mlflow",
    "nvidia-ml-py",
    "typer",
    "rich",
    "pydantic",
    "PyYAML",
    "durationpy",
    "psutil",
)
SHM = "/dev/shm"  # noqa: S108 (where loader workers share memory)
MIN_FREE_BYTES = 1024**3
MIN_SHM_BYTES = 256 * 1024**2
MIN_OPEN_FILES = 1024
"""Limit of most systems; each tensor from a loader worker may hold a file of its own."""
MIN_PROCESSES = 1024
"""Limit per user, threads included."""
REACH_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report.

    Args:
        state: ``ok``, ``warn`` or ``block`` (a search cannot work).
        hint: What to do; empty where all is well.
    """

    name: str
    state: str
    text: str
    hint: str = ""


def doctor(
    *,
    check_mlflow: Annotated[
        bool, typer.Option("--check-mlflow", help="Check the MLflow store as well.")
    ] = False,
    tracking_uri: Annotated[
        str,
        typer.Option(
            metavar="URI",
            envvar="AUTOTUNE_TRACKING_URI",
            help="MLflow store to check. Default: the one that a search here would use.",
        ),
    ] = "",
    json: Json = False,
) -> int:
    """Check that this machine has what a search needs. Prints no secrets; your home is shown as ~."""
    from autotune.cli.outcome import print_json

    findings = list(examined(tracking_uri, check_mlflow=check_mlflow))
    blocked = any(finding.state == "block" for finding in findings)
    code = BackendError.exit_code if blocked else 0
    if json:
        rows = [{key: _public(value) for key, value in asdict(finding).items()} for finding in findings]
        print_json({"schema": "autotune.doctor/v1", "findings": rows, "exit": code})
    else:
        width = max(len(finding.name) for finding in findings)
        for f in findings:
            print(
                f"{f.state:<5}  {f.name:<{width}}  {_public(f.text)}"
                + (f"   ({_public(f.hint)})" if f.hint else "")
            )
    return code


def examined(tracking_uri: str, *, check_mlflow: bool) -> Iterator[Finding]:
    """Yield every finding; a check that raises is a finding itself."""
    from autotune.driver.spec import version
    from autotune.inspection.host import host_facts

    host = host_facts()
    yield Finding(name="autotune", state="ok", text=version() or "not installed as a package")
    yield Finding(
        name="python", state="ok", text=f"{host.python or sys.version.split()[0]}, {sys.executable}"
    )
    yield from packages()
    yield from _machine(host)
    yield _triton(host)
    yield from _neighbours()
    yield _shared_memory()
    yield from _limits()
    yield from _disk()
    yield _isolation()
    yield _energy()
    yield _ray_auth()
    if check_mlflow:
        yield _searches_store(tracking_uri)


def packages() -> Iterator[Finding]:
    """Find the installed versions, without an import."""
    for name in PACKAGES:
        try:
            yield Finding(name=name, state="ok", text=metadata.version(name))
        except metadata.PackageNotFoundError:
            if name == "torch":
                hint = "install it for this interpreter, or name the script's: autotune search --python PATH"
                yield Finding(name=name, state="block", text="not installed", hint=hint)
            elif name == "ray":
                yield Finding(name=name, state="warn", text="not installed", hint="use --driver inline")
            else:
                yield Finding(name=name, state="block", text="not installed", hint=f"pip install {name}")


def _machine(host: HostFacts) -> Iterator[Finding]:
    from autotune.report.view.summary import bytes_text

    yield Finding(
        name="machine", state="ok", text=f"{host.platform or sys.platform}, {host.cpu_model or 'CPU'}"
    )
    cores = f"{host.cpus} CPUs ({host.physical_cores} cores), {bytes_text(host.memory_bytes)}"
    yield Finding(name="cpu", state="ok", text=cores)
    if not host.devices:
        yield _no_device()
    for device in host.devices:
        text = f"{device.name}, {bytes_text(device.memory_bytes)}, driver {device.driver or 'unknown'}"
        yield Finding(name="device", state="ok", text=text)
    compiler = host.cxx or (host.cc if host.devices else "")
    if compiler:
        yield Finding(name="compiler", state="ok", text=compiler)
    else:
        hint = "install g++ or clang; until then compile_mode is not varied"
        yield Finding(name="compiler", state="warn", text="no C++ compiler for torch.compile", hint=hint)


def _no_device() -> Finding:
    """Return the finding without an accelerator: there is none, it is hidden, or it cannot be read."""
    from autotune.devices.find import why_unread

    if why := why_unread():
        hint = "until then, a search sees no GPU: try nvidia-smi; a container needs --gpus all"
        return Finding(name="device", state="warn", text=f"NVML could not be read: {why}", hint=hint)
    shown = " that CUDA_VISIBLE_DEVICES shows" if "CUDA_VISIBLE_DEVICES" in os.environ else ""
    return Finding(name="device", state="ok", text=f"no NVIDIA GPU{shown}: training runs on the CPU")


def _triton(host: HostFacts) -> Finding:
    """Find Triton, the compiler of kernels for NVIDIA GPUs, in this interpreter, without importing it."""
    if util.find_spec("triton") is not None:
        return Finding(name="triton", state="ok", text=host.versions.get("triton") or "installed")
    if not host.devices:
        return Finding(name="triton", state="ok", text="not installed; only NVIDIA GPUs need it")
    hint = "install it where the script runs; until then compile_mode is not varied"
    return Finding(name="triton", state="warn", text="not installed", hint=hint)


def _neighbours() -> Iterator[Finding]:
    """Find other processes on each accelerator now. Whether they compute needs a second sample."""
    from autotune.devices.find import find_devices
    from autotune.launch.devices.devices_sampler import draws

    for device in find_devices():
        name = device.facts.name
        pids = [str(p) for p in device.sample().pids if p != os.getpid() and not draws(p)]
        if not pids:
            yield Finding(name="neighbours", state="ok", text=f"no other process is seen on {name}")
            continue
        hint = "end them before a search: while they compute, its runs count as disturbed"
        text = f"others are on {name}, by process id: {', '.join(pids)}"
        yield Finding(name="neighbours", state="warn", text=text, hint=hint)


def _shared_memory() -> Finding:
    from autotune.report.view.summary import bytes_text

    try:
        free = shutil.disk_usage(SHM).free
    except OSError:
        return Finding(name=SHM, state="warn", text="missing", hint="loader workers need it: --shm-size=2g")
    if free < MIN_SHM_BYTES:
        hint = "loader workers may fail; with docker: --shm-size=2g"
        return Finding(name=SHM, state="warn", text=f"{bytes_text(free)} free", hint=hint)
    return Finding(name=SHM, state="ok", text=f"{bytes_text(free)} free")


def _limits() -> Iterator[Finding]:
    """Find the limits of files and processes for a script."""
    import resource

    for name, what, option, fewest in (
        ("open files", resource.RLIMIT_NOFILE, "-n", MIN_OPEN_FILES),
        ("processes", resource.RLIMIT_NPROC, "-u", MIN_PROCESSES),
    ):
        soft, hard = resource.getrlimit(what)
        if soft == resource.RLIM_INFINITY:
            yield Finding(name=name, state="ok", text="no limit")
        elif soft >= fewest:
            yield Finding(name=name, state="ok", text=f"at most {soft}")
        else:
            may = hard == resource.RLIM_INFINITY or hard >= fewest
            remedy = f"ulimit {option} {fewest}" if may else "ask the administrator for more"
            hint = f"loader workers may fail; before a search: {remedy}"
            yield Finding(name=name, state="warn", text=f"at most {soft}", hint=hint)


def _disk() -> Iterator[Finding]:
    from autotune.report.view.summary import bytes_text
    from autotune.store.paths import home, make_home

    try:
        place = home()
    except StoreError as error:
        yield Finding(name="store", state="block", text=error.message, hint=error.hint)
        return
    try:
        make_home()
        free = shutil.disk_usage(place).free
    except OSError as error:
        text = f"{place} cannot be made: {error.strerror}"
        yield Finding(
            name="store", state="block", text=text, hint="set AUTOTUNE_HOME to a folder of your own"
        )
        return
    if not os.access(place, os.W_OK):
        text = f"{place} cannot be written to"
        yield Finding(
            name="store", state="block", text=text, hint="set AUTOTUNE_HOME to a folder of your own"
        )
    elif free < MIN_FREE_BYTES:
        text = f"{bytes_text(free)} free at {place}"
        yield Finding(name="store", state="block", text=text, hint="free some space, or set AUTOTUNE_HOME")
    else:
        yield Finding(name="store", state="ok", text=f"{place}, {bytes_text(free)} free")


def _isolation() -> Finding:
    """Find the isolation of trials of a script in this folder."""
    from autotune.launch.workspace.isolation import found_for

    here = _here()
    found = found_for(str(Path(here or "/", "train.py")), here or "/", os.environ)
    if found.mode == "overlay":
        text = "overlay: the kernel redirects the trials' writes"
        if not found.moves_folders:
            text += "; a script that renames an old folder is run again in redirect mode"
        return Finding(name="isolation", state="ok", text=text)
    text = "redirect: Python's writes are redirected inside the process"
    if not found.why:
        return Finding(name="isolation", state="ok", text=text)
    return Finding(name="isolation", state="warn", text=text, hint=found.why)


def _energy() -> Finding:
    from autotune.devices.energy_counters import Meter, Rapl
    from autotune.devices.find import find_devices

    rapl = Rapl()
    if not Meter(find_devices(), rapl).exists:
        return Finding(name="energy", state="ok", text=f"not available. {rapl.why_not}")
    read = "the processors' counters" if rapl.exists else "accelerators only"
    return Finding(name="energy", state="ok", text=f"{read} can be read")


def _ray_auth() -> Finding:
    mode = os.environ.get("RAY_AUTH_MODE", "")
    given = (
        "a token is set"
        if os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
        else "no token"
    )
    return Finding(name="ray auth", state="ok", text=f"mode {mode or 'not set'}, {given}")


def _searches_store(tracking_uri: str) -> Finding:
    """Check the given store, or the one that a search in this folder uses."""
    from autotune.config_files.settings import project_settings

    here = _here()
    try:
        settings = project_settings(Path(here)).values if here and not tracking_uri else {}
    except UsageError as error:
        return Finding(name="settings", state="block", text=error.message, hint=error.hint)
    return mlflow_store(tracking_uri or str(settings.get("tracking-uri", "")))


def mlflow_store(tracking_uri: str) -> Finding:
    """Check the store: a server must respond, and MLflow must open an existing database."""
    from autotune.report.mlflow.local_store import fault
    from autotune.report.mlflow.store import sqlite_path
    from autotune.store.paths import default_tracking_uri, own_store
    from autotune.text.redact import redact

    name, uri = "mlflow store", tracking_uri or default_tracking_uri()
    shown = redact(uri)
    if uri.startswith(("http://", "https://")):
        return _server(uri, shown)
    own = own_store(uri)
    path = own or sqlite_path(uri)
    if path is not None and not os.access(next(p for p in (path, *path.parents) if p.exists()), os.W_OK):
        return Finding(name=name, state="warn", text=f"{shown} cannot be written to", hint="--tracking-uri")
    if own is not None and (why := fault(own)):
        hint = "a search, `autotune ui` or `autotune sync` moves it aside and fills a new one"
        return Finding(name=name, state="warn", text=f"{shown} is broken: {why}", hint=hint)
    if path is not None and not path.exists():
        return Finding(name=name, state="ok", text=f"{shown}, not yet created")
    return _opened(uri, own, shown)


def _opened(uri: str, own: Path | None, shown: str) -> Finding:
    from autotune.errors import TrackerUnavailable
    from autotune.report.mlflow.recorder import MlflowSink

    try:
        MlflowSink(uri, own=own).open()
    except TrackerUnavailable as error:
        return Finding(name="mlflow store", state="warn", text=error.message, hint=error.hint)
    return Finding(name="mlflow store", state="ok", text=f"{shown}, opened")


def _server(uri: str, shown: str) -> Finding:
    import http.client
    import urllib.error
    import urllib.request

    name = "mlflow store"
    try:
        request = _health(uri)
    except ValueError:
        # Neither it nor what is wrong with it is shown: either may be a part of the password.
        hint = "in user and password write %40 for @, %2F for /, %3A for :, %23 for # and %3F for ?"
        return Finding(name=name, state="warn", text="what is given is no address of a server", hint=hint)
    try:
        with urllib.request.urlopen(request, timeout=REACH_S) as answer:  # noqa: S310 (http only)
            return Finding(name=name, state="ok", text=f"{shown} answers ({answer.status})")
    except urllib.error.HTTPError as error:
        return Finding(name=name, state="ok", text=f"{shown} answers ({error.code})")
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        hint = "a search does not need it: records wait, and `autotune sync` sends them"
        return Finding(name=name, state="warn", text=f"{shown} does not answer: {reason}", hint=hint)


def _health(uri: str) -> Request:
    """Return the health request for a server; the user in its address moves to a header, as in MLflow.

    Raises:
        ValueError: The address is malformed.
    """
    import base64
    import urllib.parse
    import urllib.request

    parts = urllib.parse.urlsplit(uri)
    userinfo, _, host = parts.netloc.rpartition("@")
    bare = parts._replace(netloc=host)
    if not bare.hostname or bare.port == 0 or "@" in f"{parts.path}{parts.query}{parts.fragment}":
        raise ValueError
    request = urllib.request.Request(bare.geturl().rstrip("/") + "/health")  # noqa: S310 (http only)
    if userinfo:
        user, _, password = (urllib.parse.unquote(part) for part in userinfo.partition(":"))
        credentials = base64.b64encode(f"{user}:{password}".encode()).decode("ascii")
        # Not to where it may redirect to.
        request.add_unredirected_header("Authorization", f"Basic {credentials}")
    return request


def _public(text: str) -> str:
    """Return the text for a bug report, with the user's folders replaced by their purpose."""
    ours = os.environ.get("AUTOTUNE_HOME", "")
    folders = {
        _here(): ".",
        os.path.expanduser("~"): "~",  # noqa: PTH111 (Path raises where a user has none)
        str(Path(ours).absolute()) if ours else "": "$AUTOTUNE_HOME",
        # The prefix of a system's own Python (/usr) is no folder of a user.
        str(Path(sys.prefix).parent) if sys.prefix != sys.base_prefix else "": "...",
    }
    # The deepest first: below a home they have a name of their own.
    for folder, shown in sorted(folders.items(), key=lambda item: -len(item[0])):
        if len(folder) > 1:
            # Whole names: /home/al is no part of /home/alice.
            text = re.sub(rf"(?<![\w.-]){re.escape(folder)}(?![\w-]|\.\w)", shown, text)
    for name in {os.environ.get("USER", ""), os.environ.get("LOGNAME", "")} - {"", "root"}:
        # As /scratch/NAME, where no home is.
        text = re.sub(rf"(?<=/){re.escape(name)}(?![\w.-])", "<user>", text)
    return text


def _here() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return ""
