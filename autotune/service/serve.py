"""Assembles the service and runs it: one process, one database, one reconciler."""

from __future__ import annotations

import ipaddress
import logging
import os
import secrets
import socket
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from autotune.errors import BackendError, StoreError, UsageError
from autotune.service.auth import Policy
from autotune.service.bundles import Bundles
from autotune.service.jobs import Jobs, ProcessJobs, RayJobs
from autotune.service.reconcile import Place, Reconciler
from autotune.service.retention import forget
from autotune.service.reverify import queue_due
from autotune.service.store import LEASE_S, Database
from autotune.service.webhooks import Sender

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

log = logging.getLogger(__name__)

ADMIN_FILE: Final = "token"
HOUSEKEEPING_S: Final = 600.0
"""Seconds between rounds of deletion and of queueing verifications."""
_EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104 (an address that the user chose)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """Settings of the service.

    Args:
        root: Folder for bundles, searches and the default database; shared with the cluster's nodes.
        host: Address to bind.
        port: Port; 0 for a free one.
        database: SQLAlchemy address; empty for SQLite below `root`.
        address: Dashboard of a Ray cluster (``http://head:8265``); empty runs searches as local processes.
        ray_address: Value of ``--address`` for searches on the cluster.
        tracking_uri: MLflow of all searches; empty for a local store per search.
        slots: GPUs of the cluster, or number of parallel searches.
        allowed_hosts: Accepted host names in addition to its own address.
        code_roots: Folders on shared storage below which searches may run without a bundle.
        tls: Certificate and key files; both empty without TLS.
        is_behind_proxy: Whether a proxy in front handles TLS.
        proxy_header: Header in which that proxy names users.
        price_per_hour: Price of a slot.
        webhook_hosts: Hosts to which webhooks may be sent; empty allows none.
        python: Interpreter with autotune where searches run; empty for this one.
        images: Patterns of container images that searches may name (Ray's ``image_uri``); empty allows none.
        keep_s: Seconds after their end at which searches are deleted; 0 keeps them.
        reverify_s: Seconds after which configurations are measured again; 0 for never.
        public_url: Address under which jobs reach the service; empty derives it from host and port.
    """

    root: Path
    host: str = "127.0.0.1"
    port: int = 8650
    database: str = ""
    address: str = ""
    ray_address: str = ""
    tracking_uri: str = ""
    slots: int = 1
    allowed_hosts: tuple[str, ...] = ()
    code_roots: tuple[str, ...] = ()
    tls: tuple[str, str] = ("", "")
    is_behind_proxy: bool = False
    proxy_header: str = ""
    price_per_hour: float | None = None
    webhook_hosts: tuple[str, ...] = ()
    public_url: str = ""
    python: str = ""
    images: tuple[str, ...] = ()
    keep_s: float = 0.0
    reverify_s: float = 0.0


class Service:
    """Service that is ready to run.

    Raises:
        UsageError: The settings would expose it without protection.
        StoreError: The database cannot be used, or another service uses it.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        _check(settings)
        self.settings = settings
        settings.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.database = Database(settings.database or f"sqlite:///{settings.root.absolute() / 'service.db'}")
        self.database.migrate()
        self._owner = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._await_lease()
        place = Place(root=settings.root)
        self._bundles = Bundles(settings.root / "bundles")
        self.jobs = _jobs(settings)
        options = {"driver": "ray"}
        if settings.ray_address:
            options["address"] = settings.ray_address
        if settings.tracking_uri:
            options["tracking-uri"] = settings.tracking_uri
        self.reconciler = Reconciler(
            self.database,
            self.jobs,
            place,
            capacity=settings.slots,
            prepare=self._prepare,
            python=settings.python or sys.executable,
            options=options,
            environ={"RAY_AUTH_MODE": os.environ.get("RAY_AUTH_MODE", "disabled")},
        )
        self._place = place
        self._stopping = threading.Event()

    @property
    def app(self) -> Any:
        """The ASGI application."""
        from autotune.service.app import create_app

        names = {self.settings.host, *self.settings.allowed_hosts, "localhost", "127.0.0.1", "[::1]"}
        names |= {socket.gethostname(), urlsplit(self.settings.public_url).hostname or "localhost"}
        policy = Policy(
            hosts=frozenset(names),
            proxy_header=self.settings.proxy_header,
            proxy_secret=os.environ.get("AUTOTUNE_PROXY_SECRET", ""),
        )
        return create_app(
            self.database,
            self._bundles,
            self.jobs,
            self._place,
            self.reconciler,
            policy=policy,
            capacity=self.settings.slots,
            price_per_hour=self.settings.price_per_hour,
            roots=self.settings.code_roots,
            images=self.settings.images,
            # A store in a file has no page.
            mlflow=uri if (uri := self.settings.tracking_uri).startswith(("http://", "https://")) else "",
        )

    def token(self) -> str:
        """Return the administrator's token, created at the first start; stored in a file of mode 0600."""
        path = self.settings.root / ADMIN_FILE
        try:
            found = path.read_text(encoding="utf-8").strip()
        except OSError:
            found = ""
        if found and self.database.identity(found) is not None:
            return found
        made = self.database.create_token(
            user=os.environ.get("USER", "admin"), scope="admin", note="first start"
        )
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as stream:
            stream.write(made + "\n")
        return made

    def run(self, ready: Callable[[str], None]) -> None:
        """Serve until SIGINT or SIGTERM; running searches continue, and the next start finds them.

        Args:
            ready: Called with the address once requests are answered.
        """
        import uvicorn

        sock = self._bound()
        scheme = "https" if all(self.settings.tls) else "http"
        shown = "127.0.0.1" if self.settings.host in _EVERYWHERE else self.settings.host
        url = f"{scheme}://{shown}:{sock.getsockname()[1]}"
        certificate, key = self.settings.tls
        config = uvicorn.Config(
            self.app,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            ssl_certfile=certificate or None,
            ssl_keyfile=key or None,
            timeout_graceful_shutdown=5,
            lifespan="off",
        )
        server = uvicorn.Server(config)
        self.reconciler.reports.url = self._reached_at(scheme, sock.getsockname()[1])
        threads = [
            threading.Thread(target=self.reconciler.run, name="reconciler", daemon=True),
            threading.Thread(target=self._renew, name="lease", daemon=True),
            threading.Thread(target=self._send, name="webhooks", daemon=True),
            threading.Thread(target=self._keep_house, name="housekeeping", daemon=True),
        ]
        for thread in threads:
            thread.start()
        threading.Thread(target=_when_started, args=(server, lambda: ready(url)), daemon=True).start()
        try:
            server.run(sockets=[sock])
        finally:
            self._stopping.set()
            self.reconciler.stop()
            for thread in threads:
                thread.join(10.0)
            self.database.drop_lease(self._owner)

    def _reached_at(self, scheme: str, port: int) -> str:
        """Return the address under which jobs reach this service."""
        host = self.settings.host
        if host in _EVERYWHERE:
            host = socket.gethostname() if self.settings.address else "127.0.0.1"
        return (
            self.settings.public_url.rstrip("/")
            or f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        )

    def _bound(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.settings.host else socket.AF_INET
        sock = socket.socket(family)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((self.settings.host, self.settings.port))
        except OSError as error:
            sock.close()
            raise BackendError(
                f"port {self.settings.port} of {self.settings.host} cannot be used: {error.strerror}",
                hint="choose another one: --port 0 takes a free one",
            ) from error
        sock.set_inheritable(True)
        return sock

    def _prepare(self, row: Any) -> None:
        """Put the code of a search into its folder."""
        to = self._place.code(row.id)
        if row.bundle:
            self._bundles.unpack(row.bundle, to)
        elif not to.exists():
            to.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            to.symlink_to(row.request["path"], target_is_directory=True)

    def _await_lease(self) -> None:
        """Take the lease; the lease of a killed service expires.

        A lease is dead if it was not renewed for `LEASE_S` by the clock of this process: the wall clocks of
        two machines differ, and may jump.

        Raises:
            StoreError: Another service keeps renewing it.
        """
        until, watched = time.monotonic() + LEASE_S + 2.0, self.database.lease()
        while not self.database.take_lease(self._owner):
            if time.monotonic() > until:
                if self.database.take_lease(self._owner, dead=watched):
                    return
                raise StoreError(
                    "another service drives this database",
                    hint="one service per database; stop the other one",
                )
            time.sleep(0.5)

    def _renew(self) -> None:
        while not self._stopping.wait(LEASE_S / 3):
            try:
                if not self.database.take_lease(self._owner):
                    log.error("another service has taken over the database; this one stops acting")
                    self.reconciler.stop()
                    return
            except Exception:
                log.exception("the lease could not be renewed")

    def _keep_house(self) -> None:
        while True:
            try:
                if self.settings.keep_s:
                    forget(self.database, self._place, self.settings.keep_s)
                if self.settings.reverify_s:
                    queue_due(self.database, older_than_s=self.settings.reverify_s, now_s=time.time())
            except Exception:
                log.exception("a round of housekeeping failed")
            if self._stopping.wait(HOUSEKEEPING_S):
                return

    def _send(self) -> None:
        sender = Sender(
            self.database, self.settings.webhook_hosts, os.environ.get("AUTOTUNE_WEBHOOK_SECRET", "")
        )
        while not self._stopping.wait(2.0):
            try:
                sender.send_due()
            except Exception:
                log.exception("webhooks could not be sent")


def _when_started(server: Any, ready: Callable[[], None]) -> None:
    while not server.started:
        if server.should_exit:
            return
        time.sleep(0.02)
    ready()


def _jobs(settings: ServiceSettings) -> Jobs:
    folder = settings.root / "jobs"
    if not settings.address:
        return ProcessJobs(folder, settings.python or sys.executable)
    import httpx

    token = os.environ.get("RAY_AUTH_TOKEN", "")
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return RayJobs(settings.address, httpx.Client(headers=headers), folder, settings.python or sys.executable)


def _check(settings: ServiceSettings) -> None:
    """Refuse to listen to the network without protection.

    Raises:
        UsageError: TLS is missing or incomplete.
    """
    certificate, key = settings.tls
    if bool(certificate) != bool(key):
        raise UsageError("TLS needs a certificate and a key", hint="--tls-cert FILE --tls-key FILE")
    if settings.proxy_header and not settings.is_behind_proxy:
        raise UsageError("--proxy-header needs --insecure-behind-proxy")
    if settings.proxy_header and not os.environ.get("AUTOTUNE_PROXY_SECRET"):
        raise UsageError(
            "--proxy-header needs a secret that proves the proxy",
            hint="set AUTOTUNE_PROXY_SECRET, and let the proxy send it as X-Autotune-Proxy-Secret",
        )
    if _is_loopback(settings.host) or certificate or settings.is_behind_proxy:
        return
    raise UsageError(
        f"{settings.host} is reachable from the network, and tokens would travel in clear",
        hint="--tls-cert FILE --tls-key FILE, or --insecure-behind-proxy where a proxy does TLS",
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
