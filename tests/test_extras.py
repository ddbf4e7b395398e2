"""Optional packages: the repair of a torchvision that does not fit torch, and messages about missing ones."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stochseg.errors import UserError
from stochseg.extras import require

REPAIR = "from stochseg.extras import repair_torchvision; repair_torchvision()"
FOR_CUDA = """
import torch, torchvision.part
torch.library.register_fake("torchvision::nms")(lambda dets, scores, iou_threshold: dets)
"""


def python(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.fixture
def with_torchvision(tmp_path):
    """Run code where `import torchvision` finds the given source."""

    def run(source: str, code: str) -> subprocess.CompletedProcess:
        package = tmp_path / "torchvision"
        package.mkdir()
        (package / "__init__.py").write_text(source)
        (package / "part.py").write_text("value = 7\n")
        return python(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{code}")

    return run


def test_missing_operators_are_declared(with_torchvision):
    """A CUDA build of torchvision next to a CPU build of torch registers functions for operators that do not exist."""
    out = with_torchvision(FOR_CUDA, f"{REPAIR}; import torchvision.part as p; print(p.value)")
    assert out.stdout.strip() == "7", out.stderr


def test_another_failure_is_raised(with_torchvision):
    out = with_torchvision("raise RuntimeError('libpng is broken')", REPAIR)
    assert out.returncode != 0
    assert "libpng is broken" in out.stderr


def test_imports_leave_other_libraries_alone():
    code = """
import importlib, pkgutil, sys
import stochseg.extras
assert "torch" not in sys.modules
for package in pkgutil.iter_modules(stochseg.__path__):
    if package.name != "__main__":
        importlib.import_module(f"stochseg.{package.name}")
assert "stochseg.networks" in sys.modules
print([name for name in ("torchvision", "timm", "segmentation_models_pytorch") if name in sys.modules])
"""
    out = python(code)
    assert out.stdout.strip() == "[]", out.stderr


def test_a_missing_package_names_the_extra():
    with pytest.raises(UserError, match=r"this needs no_such_package; .*pip install 'stochseg\[zoo\]'"):
        require("no_such_package", "zoo", "this")


def test_a_package_that_lacks_another_one_is_not_called_missing(tmp_path, monkeypatch):
    (tmp_path / "half_installed.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        require("half_installed", "data", "this")
