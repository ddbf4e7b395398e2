r"""Bundle a trained model with the package: averaged weights in half precision, with a calibrated sampling grid.

python benchmarks/bundle.py RUN NAME --data data/lidc.h5
python benchmarks/bundle.py RUN lidc-3d --data data/lidc-nodules.h5 --set evaluations=2 --preparation \
    '{"crop": [128, 128], "slices": 8, "scale": "min-max", "units": "HU"}'
"""

from __future__ import annotations

import argparse
from pathlib import Path

from stochseg.data import open_path, spread
from stochseg.models import load, save
from stochseg.models.io import SHIPPED
from stochseg.types import Preparation

LIMIT_MEGABYTES = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="run folder, or best/ or last/ in it")
    parser.add_argument("name", help="name for stochseg.load")
    parser.add_argument(
        "--data", type=Path, required=True, help="data of the run; the grid is calibrated on the validation split"
    )
    parser.add_argument("--images", type=int, default=64, help="number of images for calibration")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="option of the model, e.g. evaluations=10"
    )
    parser.add_argument(
        "--preparation", type=Preparation.model_validate_json, help="of scans for `predict --at`, as JSON"
    )
    parser.add_argument(
        "--measure",
        action="append",
        default=[],
        metavar="NAME",
        help='ratio to report, e.g. "vertical cup/disc ratio"',
    )
    arguments = parser.parse_args()

    model = load(arguments.run)
    changes = dict(entry.split("=", 1) for entry in arguments.set)
    if changes:
        values = {**model.config.model_dump(mode="json"), **changes}
        model.config = type(model.config).model_validate(values)
    if arguments.preparation:
        model.info = model.info.model_copy(update={"preparation": arguments.preparation})
    if arguments.measure:
        model.info = model.info.model_copy(update={"measures": tuple(arguments.measure)})
    data = open_path(arguments.data, "val")
    model.calibrate_sampling([data[i].image[None] for i in spread(len(data), arguments.images)])
    megabytes = 2 * sum(tensor.numel() for tensor in model.state_dict().values()) / 1e6
    if megabytes > LIMIT_MEGABYTES:
        raise SystemExit(
            f"{arguments.run}: {megabytes:.1f} MB, expected at most {LIMIT_MEGABYTES}; bundle a smaller model"
        )
    folder = save(model, SHIPPED / arguments.name, half=True)
    print(f"{folder}: {megabytes:.1f} MB; grid {model.config.grid}, {model.config.evaluations} evaluations")


if __name__ == "__main__":
    main()
