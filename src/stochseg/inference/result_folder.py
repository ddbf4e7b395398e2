"""The folder that `predict` writes per input."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stochseg.errors import UserError
from stochseg.files import recover_folder, replaced_folder
from stochseg.inference.options import PredictOptions
from stochseg.inference.plan import Plan
from stochseg.inference.sizes import measure_sizes
from stochseg.inference.writers import WRITERS, Prediction
from stochseg.models.io import read_json

RESULT = "result.json"
FORMAT = "stochseg-prediction"


def is_result(folder: Path) -> bool:
    """Whether a folder is the result of a prediction."""
    try:
        return bool(json.loads((folder / RESULT).read_text()).get("format") == FORMAT)
    except (OSError, ValueError, AttributeError):
        return False


def write_result(folder: Path, prediction: Prediction, facts: Mapping[str, Any]) -> Path:
    """Write everything about one input, all or nothing; a result that exists there is replaced.

    The files are those of `WRITERS` that apply to the prediction, and result.json with `facts`, the sizes of the
    classes and the list of files.
    """
    with replaced_folder(folder, ours=is_result, kind="a result of stochseg predict") as scratch:
        files = [name for name, writer in WRITERS.items() if writer.applies(prediction)]
        for name in files:
            WRITERS[name].write(prediction, scratch / name)
        sizes = measure_sizes(prediction)
        content = {**facts, **sizes, "overlay_slice": prediction.shown_slice, "files": files}
        (scratch / RESULT).write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return folder


def is_complete(folder: Path, files: Sequence[Mapping[str, str]], plan: Plan) -> bool:
    """Whether a folder contains the complete result of this plan for these files, given by their checksums.

    Raises:
        UserError: The folder contains a result of another input, another model or other options.
    """
    recover_folder(folder)
    if not is_result(folder):
        return False
    record = read_json(folder / RESULT)
    written = record.get("files")
    if not written or not all((folder / str(name)).is_file() for name in written):
        return False
    if plan.options.overview and "overview.png" not in written:
        return False
    before = PredictOptions.parse(record.get("options", {}), where=str(folder / RESULT))  # reads older names, too
    now = plan.options.model_dump(exclude={"overview"})
    changed = [key for key, value in now.items() if getattr(before, key) != value]
    if not plan.is_model_of(record.get("model", {})):
        changed.append("model")
    if [file["sha256"] for file in record.get("inputs", [])] != [file["sha256"] for file in files]:
        changed.append("input")
    if changed:
        raise UserError(
            f"{folder} contains a result of another {', '.join(changed)}; replace it with --overwrite, or choose "
            "another --out"
        )
    return True
