"""Models and devices that the studio offers, found without importing torch where possible."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from stochseg.errors import UserError


def find_models(extra: Sequence[Path]) -> dict[str, str]:
    """The bundled models, and others by the names of their folders.

    Raises:
        UserError: There is no model at a path, or two have one name.
    """
    from stochseg.models import list_bundled
    from stochseg.models.io import find_model

    found = {name: name for name in list_bundled()}
    for path in extra:
        find_model(path)  # explains what is wrong
        name = Path(os.path.abspath(path)).name
        if name in found:
            raise UserError(f"--model {path}: the name {name!r} is already that of {found[name]}; rename its folder")
        found[name] = os.path.abspath(path)
    return found


def pick_devices(names: Sequence[str]) -> tuple[str, ...]:
    """Devices by name, checked; "auto" is the best one of this machine."""
    from stochseg.devices import pick_device

    return tuple(str(pick_device(name)) for name in names)
