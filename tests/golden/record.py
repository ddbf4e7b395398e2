"""Add the results of new cases to golden.npz: `python -m tests.golden.record`.

`--all` replaces the recorded results by those of this checkout, too, and names of models those of these models: only
when results are meant to change.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch

from tests.golden.cases import sample_cases

FILE = Path(__file__).with_name("golden.npz")


def platform() -> str:
    """Everything except this code that floating-point results depend on."""
    return json.dumps({"torch": torch.__version__.partition("+")[0], "cpu": torch.backends.cpu.get_cpu_capability()})


def recorded() -> dict[str, np.ndarray]:
    with np.load(FILE) as file:
        arrays = dict(file)
    if str(arrays["platform"]) != platform():
        sys.exit(f"recorded on {arrays['platform']}, this is {platform()}: add cases there, or record --all here")
    return arrays


if __name__ == "__main__":
    torch.set_num_threads(1)
    arrays = {"platform": np.array(platform())} if "--all" in sys.argv else recorded()
    again = tuple(f"{model}{end}" for model in sys.argv[1:] for end in "+/")  # with the options of a model
    arrays = {key: value for key, value in arrays.items() if not key.startswith(again)}
    known = {key.rpartition("/")[0] for key in arrays}
    for name, compute in sample_cases().items():
        if name not in known:
            arrays |= {f"{name}/{key}": value for key, value in compute().items()}
    np.savez_compressed(FILE, **arrays)
    print(f"{len(arrays)} arrays, {FILE.stat().st_size / 1e3:.0f} kB")
