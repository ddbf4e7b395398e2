"""The folder that `predict` writes per input."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stochseg.files import replaced_folder
from stochseg.inference.sizes import measure_sizes
from stochseg.inference.sources import RESULT, is_result
from stochseg.inference.writers import WRITERS, Prediction


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
