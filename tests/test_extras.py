"""Optional packages: a torchvision that does not fit torch is mended, other failures are not hidden."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stochseg.errors import UserError
from stochseg.extras import require

HALF = """
import torch, {}
torch.library.register_fake("torchvision::nms")(lambda dets, scores, iou_threshold: dets)
"""


def run(tmp_path, torchvision: str, code: str) -> subprocess.CompletedProcess:
    """Run code where `import torchvision` finds this module."""
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text(torchvision)
    (package / "part.py").write_text("value = 7\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{code}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_operators_that_are_missing_are_declared(tmp_path):
    """Exactly the failure of a CUDA torchvision beside a CPU torch: a Python function for an operator not there."""
    code = "from stochseg import extras; extras.repair_torchvision(); import torchvision.part as p; print(p.value)"
    out = run(tmp_path, HALF.format("torchvision.part"), code)
    assert out.stdout.strip() == "7", out.stderr


def test_another_failure_is_not_hidden(tmp_path):
    code = "from stochseg.extras import repair_torchvision; repair_torchvision()"
    out = run(tmp_path, "raise RuntimeError('libpng is broken')", code)
    assert out.returncode != 0
    assert "libpng is broken" in out.stderr


def test_a_missing_package_names_the_extra():
    with pytest.raises(UserError, match=r"this needs no_such_package; install it with: pip install 'stochseg\[zoo\]'"):
        require("no_such_package", "zoo", "this")
