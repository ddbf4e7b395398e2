"""Scores of a bundled model on images of another contrast: how exactly a scan must be scaled.

python benchmarks/contrast.py lidc data/lidc.h5
python benchmarks/contrast.py lidc data/lidc.h5 --fixed lowest

Gray levels are moved away from or towards a fixed one by a factor, rounded and clipped to 0 to 255: a window that is
narrower or wider than that of the training images. With the lowest level fixed, only the upper end of the window moves,
as between crops of a CT, all of which contain air.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from harness import argument_parser, scores_of, write_csv
from stochseg.data import SegmentationData, open_path
from stochseg.evaluation import evaluate
from stochseg.memory import keep_freed_memory
from stochseg.models import load
from stochseg.models.sampling import SamplingOptions
from stochseg.types import DatasetInfo, Example

FIXED = {"middle": 127.5, "lowest": 0.0}
FACTORS = (0.8, 1.0, 1.3, 1.6)


@dataclass(frozen=True)
class Recontrasted:
    """8-bit images with another contrast."""

    data: SegmentationData
    factor: float
    fixed: float

    @property
    def info(self) -> DatasetInfo:
        return self.data.info

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Example:
        example, normalization = self.data[index], self.info.normalization
        gray = normalization.inverse(example.image)
        changed = (self.fixed + self.factor * (gray - self.fixed)).round().clamp(0, 255)
        return replace(example, image=normalization(changed))


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("model", help="name of a bundled model")
    parser.add_argument("data", type=Path, help="packed store or folder of 8-bit images; its validation split is used")
    parser.add_argument("--limit", type=int, default=150, help="maximum number of validation images, evenly spaced")
    parser.add_argument("--fixed", choices=FIXED, default="middle", help="the gray level that stays")
    arguments = parser.parse_args()
    keep_freed_memory()
    model, data = load(arguments.model), open_path(arguments.data, "val")
    rows: list[dict[str, object]] = []
    for factor in FACTORS:
        result = evaluate(
            model,
            Recontrasted(data, factor, FIXED[arguments.fixed]),
            options=SamplingOptions(n=16),
            limit=arguments.limit,
            keep=0,
        )
        rows.append(
            {"model": arguments.model, "contrast": factor, "images": result.settings["images"]} | scores_of(result)
        )
        print(rows[-1], flush=True)
    kind = "" if arguments.fixed == "middle" else f"-{arguments.fixed}"
    print(write_csv(f"{arguments.model}-contrast{kind}", rows, arguments.out))


if __name__ == "__main__":
    main()
