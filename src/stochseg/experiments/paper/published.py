"""Every number in the tables of the CCDM paper, supplement included.

A table belongs to one data set in one form, so that a printed number never stands next to a score of another protocol:
a printed table over two forms is two tables here. A row names the training that fills it (`trainings.TRAININGS`);
several rows may share a training.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from stochseg.errors import unknown_name


@dataclass(frozen=True)
class Cell:
    """One number. score: key of the score that belongs next to it; printed: with its deviation, if it has one."""

    score: str
    printed: str

    @property
    def value(self) -> float:
        """The number alone."""
        return float(self.printed.partition("±")[0])


@dataclass(frozen=True)
class TableRow:
    """One printed row. training: the row of the data set's trainings that fills it; cells: by column, as printed."""

    title: str
    training: str
    parameters: str
    cells: Mapping[str, Cell]


@dataclass(frozen=True)
class PaperTable:
    """A table over one data set. columns: titles by key; digits: decimals as printed."""

    name: str
    title: str
    data: str
    columns: Mapping[str, str]
    rows: tuple[TableRow, ...]
    digits: int

    def trainings(self) -> list[str]:
        """The trainings that fill the table, in its order."""
        return list(dict.fromkeys(row.training for row in self.rows))

    def count_cells(self) -> int:
        """The number of printed values."""
        return sum(len(row.cells) for row in self.rows)


def _rows(text: str, columns: Mapping[str, str], take: slice = slice(None)) -> tuple[TableRow, ...]:
    """Parse lines of title | training | parameters | values; "-" is an empty cell, "±" a standard deviation.

    take: the values that belong to the columns.
    """
    rows = []
    for line in filter(None, map(str.strip, text.splitlines())):
        title, training, parameters, values = (part.strip() for part in line.split("|"))
        cells = {}
        for column, value in zip(columns, values.split()[take], strict=True):
            if value != "-":
                printed = re.sub(r"(?<!\d)\.", "0.", value)
                cells[column] = Cell(_score(column, title), printed)
        rows.append(TableRow(title, training, parameters, cells))
    return tuple(rows)


def _score(column: str, title: str) -> str:
    """Key of the score of a column: its own on LIDC; on Cityscapes the mIoU of maps fused by the mean."""
    if column in ("final", "best"):
        samples = re.search(r"(\d+) samples?$", title)
        return f"{'best_' if column == 'best' else ''}miou_mean_{samples[1] if samples else 1}"
    return f"miou_mean_{column}" if column in _SAMPLES else column


_SCORES = {
    "ged_16": "GED16",
    "ged_32": "GED32",
    "ged_50": "GED50",
    "ged_100": "GED100",
    "hm_iou_16": "HM-IoU16",
    "hm_iou_32": "HM-IoU32",
}
_V2_SCORES = {key: _SCORES[key] for key in ("ged_16", "ged_50", "ged_100", "hm_iou_16")}
_DIVERSITY = {f"diversity_{n}": f"Div{n}" for n in (16, 32, 50, 100)}
_SAMPLES = {str(n): f"{n} samples" if n > 1 else "1 sample" for n in (1, 5, 10)}
_FINAL_AND_BEST = {"final": "mIoU, final", "best": "mIoU, best"}

_LIDC_V1 = """
    Prob. U-Net  | prob-unet   | -   | .310±.01  .303±.01  -         .252±.004 .552±.00  .548±.00
    HProb. U-Net | hprob-unet  | -   | .270±.01  -         -         -         .530±.01  -
    PHiSeg       | phiseg      | -   | .262±.00  .247±.00  -         .224±.004 .586±.00  .595±.00
    SSN          | ssn         | -   | .259±.00  .243±.01  -         .225±.002 .558±.00  .555±.01
    cFlow        | cflow       | -   | -         .225±.01  -         -         -         .584±.00
    CAR          | car         | -   | -         -         -         .228±.009 -         -
    JProb. U-Net | jprob-unet  | -   | -         .206±.00  -         -         -         .647±.01
    PixelSeg     | pixelseg    | -   | .243±.01  -         -         -         .614±.00  -
    MoSE         | mose-42m    | 42M | .218±.003 -         .195±.002 .189±.002 .624±.004 -
    Analog Bits  | analog-bits | 9M  | .213±.001 .196±.002 .193±.002 -         .614±.001 .619±.001
    CIMD         | cimd        | 24M | .234±.005 .218±.005 .210±.005 -         .587±.001 .592±.002
    CCDM         | ccdm-9m     | 9M  | .212±.002 .194±.001 .187±.002 .183±.002 .623±.002 .631±.002
"""
_LIDC_V2 = """
    Prob. U-Net  | prob-unet   | -   | .320±.030 -         .252      .500±.030
    HProb. U-Net | hprob-unet  | -   | .270±.010 -         -         .530±.01
    CAR          | car         | -   | .264±.002 .248±.004 .243±.004 .592±.005
    JProb. U-Net | jprob-unet  | -   | .262±.00  -         -         .585±.00
    PixelSeg     | pixelseg    | -   | .260±.00  -         -         .587±.01
    CCDM         | ccdm-9m     | 9M  | .239±.003 .216±.003 .210±.003 .598±.001
"""
_MODEL_SIZE = """
    MoSE 9M  | mose-9m  | 9M  | .219 -    .195 .190 .620 -
    MoSE 42M | mose-42m | 42M | .218 -    .195 .189 .624 -
    CCDM 9M  | ccdm-9m  | 9M  | .212 .194 .187 .183 .623 .631
    CCDM 41M | ccdm-41m | 41M | .207 .189 .182 .177 .629 .636
"""
_CAPACITY = """
    5.4M, 4 levels | ccdm-5.4m | 5.4M | 37.8 39.7 40.6
    7.5M, 5 levels | ccdm-7.5m | 7.5M | 44.7 48.3 48.5
    22M, 4 levels  | ccdm-22m  | 22M  | 51.6 54.0 53.6
    30M, 5 levels  | ccdm-30m  | 30M  | 53.2 55.4 56.2
"""
# Cityscapes, in the columns of the paper: final and best mIoU at 128×256, then at 256×512.
_RIVALS = """
    DeepLabv3, ResNet50  | deeplabv3-r50  | 39M | 43.4 44.1 58.6 59.2
    DeepLabv3, ResNet101 | deeplabv3-r101 | 58M | 43.8 45.5 59.2 59.8
    UPerNet, ResNet101   | upernet-r101   | 83M | 45.5 47.1 60.7 61.2
    HRNet, w48v2         | hrnet-w48      | 70M | 48.2 49.5 63.3 64.2
    UPerNet, Swin-Tiny   | upernet-swin-t | 58M | 54.2 55.9 65.5 66.0
"""
_CCDM = """
    CCDM, 1 sample   | ccdm-30m | 30M | 53.2 - 60.3 -
    CCDM, 5 samples  | ccdm-30m | 30M | 55.4 - 62.0 -
    CCDM, 10 samples | ccdm-30m | 30M | 56.2 - 62.4 -
"""
_CCDM_DINO = """
    CCDM, DINO ViT-S, 1 sample   | ccdm-30m-dino | 30M + 20M | 55.5 - 64.0 -
    CCDM, DINO ViT-S, 5 samples  | ccdm-30m-dino | 30M + 20M | 56.9 - 65.4 -
    CCDM, DINO ViT-S, 10 samples | ccdm-30m-dino | 30M + 20M | 57.3 - 65.8 -
"""
_UNET = "U-Net, cross-entropy | unet-ce | 30M | 48.7 - 61.0 -"
_UNET_DINO = "U-Net, cross-entropy, DINO ViT-S | unet-ce-dino | 30M + 20M | 53.4 - 63.2 -"


def _cityscapes(size: str, values: slice) -> tuple[PaperTable, PaperTable]:
    """Table 2 and the table of U-Nets at one resolution. values: the columns of that resolution."""
    data = f"cityscapes-{size}"
    main = _rows(_RIVALS + _CCDM + _CCDM_DINO, _FINAL_AND_BEST, values)
    unets = _rows("\n".join([_UNET, _CCDM, _UNET_DINO, _CCDM_DINO]), _FINAL_AND_BEST, values)
    return (
        PaperTable(data, f"Tab. 2: Cityscapes val, {size}", data, _FINAL_AND_BEST, main, 1),
        PaperTable(
            f"unet-ce-{size}", f"Supplement: U-Nets on Cityscapes val, {size}", data, {"final": "mIoU"}, unets, 1
        ),
    )


def _ccdm_only(values: str) -> str:
    return f"CCDM | ccdm-9m | 9M | {values}"


_ALL = (
    PaperTable("lidc-v1", "Tab. 1: LIDCv1", "lidc-v1", _SCORES, _rows(_LIDC_V1, _SCORES), 3),
    PaperTable("lidc-v2", "Tab. 1: LIDCv2", "lidc-v2", _V2_SCORES, _rows(_LIDC_V2, _V2_SCORES), 3),
    *_cityscapes("128x256", slice(0, 2)),
    *_cityscapes("256x512", slice(2, 4)),
    PaperTable(
        "capacity",
        "Tab. 3: capacity, Cityscapes val, 128x256",
        "cityscapes-128x256",
        _SAMPLES,
        _rows(_CAPACITY, _SAMPLES),
        1,
    ),
    PaperTable(
        "diversity-v1",
        "Supplement: sample diversity on LIDCv1",
        "lidc-v1",
        _DIVERSITY,
        _rows(_ccdm_only(".491±.001 .509±.001 .515±.002 .519±.002"), _DIVERSITY),
        3,
    ),
    PaperTable(
        "diversity-v2",
        "Supplement: sample diversity on LIDCv2",
        "lidc-v2",
        _DIVERSITY,
        _rows(_ccdm_only(".487±.003 .503±.003 .509±.003 .515±.002"), _DIVERSITY),
        3,
    ),
    PaperTable("model-size", "Supplement: model sizes on LIDCv1", "lidc-v1", _SCORES, _rows(_MODEL_SIZE, _SCORES), 3),
)
TABLES: dict[str, PaperTable] = {table.name: table for table in _ALL}
"""All tables by name, those of the supplement last."""


def find_table(name: str) -> PaperTable:
    """Look up a table.

    Raises:
        UserError: if the name is unknown.

    >>> find_table("lidc-v1").rows[-1].cells["ged_16"]
    Cell(score='ged_16', printed='0.212±0.002')
    """
    if name not in TABLES:
        raise unknown_name("table of the paper", name, TABLES)
    return TABLES[name]
