"""A user's environment beside ours: an interpreter of its own, with nothing or with PyTorch alone in it."""

from __future__ import annotations

import importlib.util
import venv
from pathlib import Path

_TORCH = (
    *("torch", "torchgen", "functorch", "typing_extensions.py", "sympy", "mpmath", "networkx", "jinja2"),
    *("markupsafe", "filelock", "fsspec", "numpy", "numpy.libs"),
)


def environment(folder: Path, *, torch: bool = False) -> Path:
    """Make one and return its interpreter."""
    venv.create(folder, with_pip=False, symlinks=True)
    if torch:
        (site,) = folder.glob("lib/python*/site-packages")
        found = importlib.util.find_spec("torch")
        assert found is not None
        assert found.origin is not None
        real = Path(found.origin).parents[1]
        for name in _TORCH:
            if (real / name).exists():
                (site / name).symlink_to(real / name)
    return folder / "bin" / "python"


def pretend_torch(folder: Path) -> None:
    """Let an environment look as if PyTorch were in it, for whoever only asks."""
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").write_text("raise ImportError('only looked up')\n")
    (site / "torch" / "version.py").write_text("__version__ = '9.9.9+made'\n")


def program(path: Path, text: str) -> Path:
    """An executable file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path
