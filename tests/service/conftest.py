"""A service over jobs that run nothing, on SQLite and, where a server is there, on PostgreSQL."""

import os
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path

import pytest
from service_fakes import Clock, FakeJobs

from autotune.service.bundles import Bundles
from autotune.service.reconcile import Place, Reconciler
from autotune.service.store import Database


@pytest.fixture(scope="session")
def postgres():
    """The address of a PostgreSQL server of our own; skips where none is installed."""
    pytest.importorskip("psycopg")
    versions = Path("/usr/lib/postgresql")
    found = max((path.name for path in versions.iterdir()), default="") if versions.is_dir() else ""
    if not found or shutil.which("setpriv") is None:
        pytest.skip("PostgreSQL is not installed")
    folder = tempfile.mkdtemp(prefix="autotune-pg-")
    bin_ = f"/usr/lib/postgresql/{found}/bin"
    as_user = []
    if os.getuid() == 0:
        shutil.chown(folder, "postgres")
        as_user = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups"]
    run = lambda *words: subprocess.run([*as_user, *words], check=True, capture_output=True, cwd=folder)  # noqa: E731
    run(f"{bin_}/initdb", "-D", f"{folder}/data", "-U", "autotune", "--auth", "trust")
    run(
        f"{bin_}/pg_ctl",
        "-D",
        f"{folder}/data",
        "-w",
        "-l",
        f"{folder}/log",
        "-o",
        f"-c listen_addresses='' -k {folder}",
        "start",
    )
    yield f"postgresql+psycopg://autotune@/postgres?host={folder}"
    run(f"{bin_}/pg_ctl", "-D", f"{folder}/data", "-m", "immediate", "stop")
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request, tmp_path):
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'service.db'}"
        return
    import sqlalchemy as sa

    server = request.getfixturevalue("postgres")
    name = f"t{uuid.uuid4().hex}"
    engine = sa.create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    yield server.replace("/postgres?", f"/{name}?")
    engine.dispose()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def database(database_url, clock):
    found = Database(database_url, wall=clock)
    found.migrate()
    yield found
    found.engine.dispose()


@pytest.fixture
def place(tmp_path):
    return Place(root=tmp_path / "data")


@pytest.fixture
def bundles(tmp_path):
    return Bundles(tmp_path / "data" / "bundles")


@pytest.fixture
def jobs():
    return FakeJobs()


@pytest.fixture
def reconciler(database, jobs, place):
    return Reconciler(
        database, jobs, place, capacity=2, prepare=lambda row: None, options={"driver": "inline"}, environ={}
    )
