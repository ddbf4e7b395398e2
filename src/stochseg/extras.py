"""Optional packages, which the extras of the install provide, and a repair of torchvision that some of them need.

torchvision from PyPI is built for CUDA. Next to a CPU build of torch its compiled part does not load, and `import
torchvision` fails with "operator torchvision::nms does not exist". timm and segmentation_models_pytorch then fail too,
although stochseg never reaches these operators. `repair_torchvision` declares them without an implementation, which is
enough for the import. It runs only when such a package is needed, not when stochseg or one of its packages is imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

from stochseg.errors import UserError

if TYPE_CHECKING:
    from torch.library import Library

MISSING = "operator torchvision::"
OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
"""Signatures that torchvision publishes."""
_LIBRARIES: list[Library] = []
"""Declared operators last as long as their library."""


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import an optional package.

    Args:
        module: Name of the package, such as "timm".
        extra: Extra of the install that provides it.
        purpose: What needs it, for the error message.

    Returns:
        The imported module.

    Raises:
        UserError: If the package is not installed; the message names the extra.

    Example:
        >>> require("json", "data", "this example").__name__
        'json'
    """
    if extra == "zoo":  # its packages import torchvision
        repair_torchvision()
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in (module.partition(".")[0], "torchvision"):
            raise
        raise UserError(f"{purpose} needs {error.name}; install it with: pip install 'stochseg[{extra}]'") from None


@cache
def repair_torchvision() -> None:
    """Make `import torchvision` work if it is installed for another build of torch; other failures are raised.

    Call before importing a package that imports torchvision.
    """
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if not str(error).startswith(MISSING):
            raise
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        from torch.library import Library

        library = Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for schema in OPERATORS:
            library.define(schema)  # type: ignore[no-untyped-call]
        _LIBRARIES.append(library)
        importlib.import_module("torchvision")
