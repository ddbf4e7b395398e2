"""Put a trained run into the package: its averaged weights in half precision, with the sampling grid measured.

python benchmarks/ship.py RUN NAME --data data/lidc.h5
"""

from __future__ import annotations

import argparse
from pathlib import Path

from stochseg.data import open_path, spread
from stochseg.models import load, save
from stochseg.models.io import SHIPPED

LIMIT_MEGABYTES = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="run folder, or its best/ or last/")
    parser.add_argument("name", help="the name that stochseg.load takes")
    parser.add_argument("--data", type=Path, required=True, help="the run's data; its val split measures the grid")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="sampling default, e.g. evaluations=10"
    )
    arguments = parser.parse_args()

    model = load(arguments.run)
    changes = dict(entry.split("=", 1) for entry in arguments.set)
    if changes:
        values = {**model.config.model_dump(mode="json"), **changes}
        model.config = type(model.config).model_validate(values)
    data = open_path(arguments.data, "val")
    model.calibrate_sampling([data[i].image[None] for i in spread(len(data), arguments.images)])
    megabytes = 2 * sum(tensor.numel() for tensor in model.state_dict().values()) / 1e6
    if megabytes > LIMIT_MEGABYTES:
        raise SystemExit(f"{arguments.run}: {megabytes:.1f} MB, at most {LIMIT_MEGABYTES} are shipped")
    folder = save(model, SHIPPED / arguments.name, half=True)
    print(f"{folder}: {megabytes:.1f} MB; grid {model.config.grid}, {model.config.evaluations} evaluations")


if __name__ == "__main__":
    main()
