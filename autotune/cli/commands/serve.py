"""`autotune serve` and `autotune admin`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

TRUST = (
    "Anyone with a token of scope run can execute code as this service's user. "
    "Searches of one service share that user and its files."
)

_cluster_option = partial(typer.Option, rich_help_panel="Cluster")
_storage_option = partial(typer.Option, rich_help_panel="Storage")
_network_option = partial(typer.Option, rich_help_panel="Network")


def serve(
    *,
    local: Annotated[
        bool,
        typer.Option("--local", help="This machine alone: SQLite, local Ray. The default without --address."),
    ] = False,
    address: Annotated[
        str,
        _cluster_option(metavar="URL", help="Dashboard of a Ray cluster: http://HEAD:8265."),
    ] = "",
    ray_address: Annotated[
        str,
        _cluster_option(metavar="ADDR", help="Address that searches use on the cluster."),
    ] = "auto",
    slots: Annotated[
        int,
        _cluster_option(metavar="N", min=1, help="GPUs of the cluster, or searches at a time."),
    ] = 1,
    python: Annotated[
        str,
        _cluster_option(metavar="PATH", help="Interpreter with autotune on the nodes."),
    ] = "",
    allow_image: Annotated[
        list[str] | None,
        _cluster_option(metavar="PATTERN", help="Container images that searches may name."),
    ] = None,
    database: Annotated[
        str,
        _storage_option(
            metavar="URL",
            envvar="AUTOTUNE_SERVICE_DATABASE",
            help="PostgreSQL (postgresql+psycopg://...) or SQLite; default: SQLite in the data folder.",
        ),
    ] = "",
    data: Annotated[
        str,
        _storage_option(metavar="DIR", help="Bundles and searches; shared with the cluster's nodes."),
    ] = "",
    code_root: Annotated[
        list[str] | None,
        _storage_option(metavar="DIR", help="Shared folder below which searches may run in place."),
    ] = None,
    tracking_uri: Annotated[str, _storage_option(metavar="URI", help="MLflow of all searches.")] = "",
    host: Annotated[str, _network_option(metavar="HOST", help="Address to bind.")] = "127.0.0.1",
    port: Annotated[int, _network_option(min=0, max=65535, help="Port; 0 for a free one.")] = 8650,
    allow_host: Annotated[
        list[str] | None,
        _network_option(metavar="NAME", help="Host name under which it answers."),
    ] = None,
    public_url: Annotated[
        str,
        _network_option(metavar="URL", help="Address under which searches reach it."),
    ] = "",
    tls_cert: Annotated[str, _network_option(metavar="FILE", help="Certificate.")] = "",
    tls_key: Annotated[str, _network_option(metavar="FILE", help="Its key.")] = "",
    behind_proxy: Annotated[
        bool,
        _network_option("--insecure-behind-proxy", help="A proxy in front does TLS."),
    ] = False,
    proxy_header: Annotated[
        str,
        _network_option(metavar="NAME", help="Header in which the proxy names the user (OIDC)."),
    ] = "",
    price_per_hour: Annotated[
        float | None, typer.Option(metavar="PRICE", help="Price of a slot per hour, for price caps.")
    ] = None,
    keep: Annotated[
        str,
        _storage_option(metavar="90d", help="Delete searches this long after their end."),
    ] = "",
    reverify: Annotated[
        str, typer.Option(metavar="30d", help="Measure configurations again after this time.")
    ] = "",
    webhook_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Host to which webhooks may be sent.")
    ] = None,
) -> int:
    r"""Run the autotuning service: a queue of searches that a team shares.

    \b
    autotune serve --local
    autotune serve --address http://ray-head:8265 --slots 8 --database postgresql+psycopg://autotune@db/autotune

    Clients: autotune submit, status, cancel, fetch; or the page it prints. A token of scope run is a
    shell as the service's user. Needs: pip install 'autotune-training[service]'.
    """
    from autotune.errors import UsageError
    from autotune.store.paths import home

    if local and address:
        raise UsageError(
            "--local runs searches on this machine, and --address on a cluster", hint="leave one out"
        )
    _check_installed()
    from autotune.config_files.duration import duration_s
    from autotune.service.serve import Service, ServiceSettings

    settings = ServiceSettings(
        root=Path(data).absolute() if data else home() / "service",
        host=host,
        port=port,
        database=database,
        address=address,
        ray_address=ray_address if address else "",
        tracking_uri=tracking_uri,
        slots=slots,
        allowed_hosts=tuple(allow_host or ()),
        code_roots=tuple(code_root or ()),
        tls=(tls_cert, tls_key),
        is_behind_proxy=behind_proxy,
        proxy_header=proxy_header,
        price_per_hour=price_per_hour,
        webhook_hosts=tuple(webhook_host or ()),
        public_url=public_url,
        python=python,
        images=tuple(allow_image or ()),
        keep_s=duration_s(keep) if keep else 0.0,
        reverify_s=duration_s(reverify) if reverify else 0.0,
    )
    service = Service(settings)
    service.token()

    def ready(url: str) -> None:
        print(f"autotune service: {url}")
        print(f"token: {settings.root / 'token'} (autotune submit on this machine finds it)")
        print(TRUST)
        print("Ctrl-C ends the service; searches go on, and the next start finds them.", flush=True)

    service.run(ready)
    return 0


def _check_installed() -> None:
    """Refuse to start without the packages of the extra.

    Raises:
        UsageError: A package is missing.
    """
    import importlib.util

    from autotune.errors import UsageError

    needed = ("fastapi", "uvicorn", "sqlalchemy", "alembic", "jinja2", "httpx", "prometheus_client")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the service needs packages that are not installed: {', '.join(missing)}",
            hint="pip install 'autotune-training[service]'",
        )


admin = typer.Typer(help="Tokens and projects of a service.", no_args_is_help=True, rich_markup_mode=None)


@admin.command("token")
def create_token(
    user: Annotated[str, typer.Argument(metavar="USER")],
    *,
    project: Annotated[str, typer.Option(metavar="NAME", help="Its project.")] = "default",
    scope: Annotated[str, typer.Option(metavar="read|run|admin", help="What it permits.")] = "run",
    expires: Annotated[str, typer.Option(metavar="30d", help="Its life; empty for no end.")] = "90d",
) -> int:
    """Create a token and print it once."""
    from autotune.config_files.duration import duration_s
    from autotune.service.client import Client

    body = {"user": user, "project": project, "scope": scope}
    if expires:
        body["expires_s"] = duration_s(expires)  # type: ignore[assignment]
    print(Client().request("POST", "/api/v1/tokens", json=body)["token"])
    print(f"{scope} for {user} in project {project}; it is not shown again", file=sys.stderr)
    return 0


@admin.command("tokens")
def list_tokens() -> int:
    """List tokens; none of them can be used from what is shown."""
    from autotune.service.client import Client

    for row in Client().request("GET", "/api/v1/tokens")["tokens"]:
        print(f"{row['id']}  {row['scope']:<5}  {row['user']}  {row['project']}  {row['note']}".rstrip())
    return 0


@admin.command("revoke")
def revoke_token(token_id: Annotated[str, typer.Argument(metavar="ID")]) -> int:
    """Delete a token by its id."""
    from autotune.service.client import Client

    Client().request("DELETE", f"/api/v1/tokens/{token_id}")
    return 0


@admin.command("project")
def set_project(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    *,
    weight: Annotated[float, typer.Option(help="Share beside other projects.")] = 1.0,
    max_running: Annotated[int | None, typer.Option(metavar="N", help="Searches at a time.")] = None,
    max_running_per_user: Annotated[
        int | None, typer.Option(metavar="N", help="Searches of a user at a time.")
    ] = None,
    max_gpus: Annotated[int | None, typer.Option(metavar="N", help="GPUs at a time.")] = None,
) -> int:
    """Create a project or change its quotas."""
    from autotune.service.client import Client

    body = {
        "weight": weight,
        "max_running": max_running,
        "max_running_per_user": max_running_per_user,
        "max_gpus": max_gpus,
    }
    Client().request("PUT", f"/api/v1/projects/{name}", json=body)
    return 0


@admin.command("forget")
def forget(
    older_than: Annotated[str, typer.Option(metavar="90d", help="Of searches that ended before.")],
) -> int:
    """Delete searches that have ended, with their files and the bundles that none uses any more."""
    from autotune.config_files.duration import duration_s
    from autotune.service.client import Client

    found = Client().request("DELETE", "/api/v1/searches", params={"older_than_s": duration_s(older_than)})
    print(f"deleted {len(found['deleted'])} searches")
    return 0


@admin.command("backup")
def backup(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The copy; must not exist.")],
    *,
    data: Annotated[str, typer.Option(metavar="DIR", help="The service's data folder.")] = "",
) -> int:
    """Copy the SQLite database of a service, which may run; of PostgreSQL use pg_dump.

    To restore, stop the service and put the copy in place of DIR/service.db.
    """
    from autotune.service import retention
    from autotune.store.paths import home

    retention.backup((Path(data) if data else home() / "service") / "service.db", Path(file))
    print(f"{file}; it holds digests of tokens, and no token")
    return 0
