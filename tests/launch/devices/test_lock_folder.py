"""One folder of locks for all accounts of a machine, in which none can spoil what is another's."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.launch.devices import lock_folder as module
from autotune.launch.devices.lock_folder import is_for_all, lock_folder, opened


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """In place of the system's folder and of ours below /tmp."""
    system, own = tmp_path / "run", tmp_path / "own"
    monkeypatch.delenv(module.VARIABLE)
    monkeypatch.setattr(module, "SYSTEM_FOLDER", str(system))
    monkeypatch.setattr(module, "OWN_FOLDER", str(own))
    return system, own


@pytest.mark.parametrize(("mode", "is_used"), [(0o1777, True), (0o755, False), (0o777, False)])
def test_the_systems_folder_is_used_only_if_every_account_may_use_it_and_none_can_remove_anothers_files(
    places: tuple[Path, Path], mode: int, is_used: bool
) -> None:
    system, own = places
    system.mkdir()
    system.chmod(mode)
    assert lock_folder() == (system if is_used else own)


def test_a_folder_of_ours_is_for_all_whatever_the_umask(places: tuple[Path, Path]) -> None:
    _, own = places
    assert lock_folder() == own
    assert is_for_all(str(own))
    assert lock_folder() == own, "it is there already"


def test_a_link_or_a_private_folder_in_its_place_is_refused(places: tuple[Path, Path]) -> None:
    _, own = places
    own.mkdir(mode=0o700)
    with pytest.raises(OSError, match="all accounts share"):
        lock_folder()
    own.rmdir()
    elsewhere = own.with_name("elsewhere")
    elsewhere.mkdir()
    elsewhere.chmod(0o1777)
    own.symlink_to(elsewhere)
    with pytest.raises(OSError, match="all accounts share"):
        lock_folder()


def test_a_variable_names_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(module.VARIABLE, str(tmp_path / "mounted" / "locks"))
    assert lock_folder() == tmp_path / "mounted" / "locks"
    assert lock_folder().is_dir()


def test_a_lock_file_is_made_once_and_never_through_a_link(tmp_path: Path) -> None:
    first, second = opened(tmp_path, "a.lock"), opened(tmp_path, "a.lock")
    assert first != second
    (tmp_path / "b.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"b\.lock"):
        opened(tmp_path, "b.lock")
    assert not (tmp_path / "elsewhere").exists()
