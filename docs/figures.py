"""Draw the pictures of README and docs: `python docs/figures.py RUN`, with RUN trained by the recipe phantom-tiny."""

from __future__ import annotations

import sys
from pathlib import Path

from matplotlib.figure import Figure

from stochseg.core import CategoricalProcess, cosine
from stochseg.data import Phantoms, open_dataset
from stochseg.evaluation import evaluate
from stochseg.models import load
from stochseg.models.sampling import SamplingOptions
from stochseg.plotting import forward_process, mode_frequencies, qualitative, write_figure
from stochseg.plotting.pictures import image_to_rgb
from stochseg.training import open_split, read_config

IMAGES = Path(__file__).parent / "images"


def contact_sheet(data: Phantoms, indices: range) -> Figure:
    """Draw one column per phantom and one row per reading, with its outline and its probability."""
    modes = len(data.truth(indices[0]).names)
    figure = Figure(figsize=(1.7 * len(indices), 1.85 * modes), layout="constrained")
    axes = figure.subplots(modes, len(indices))
    for column, i in zip(axes.T, indices, strict=True):
        truth = data.truth(i)
        for row, axis in enumerate(column):
            axis.imshow(image_to_rgb(data[i].image, data.info.normalization))
            axis.set_axis_off()
            axis.set_title(f"{truth.names[row]}  {truth.probabilities[row]:.0%}", fontsize=8, pad=3)
            for label in range(1, data.info.num_classes):
                region = (truth.modes[row] == label).numpy()
                if region.any():
                    axis.contour(region, levels=[0.5], colors=data.info.colors[label], linewidths=1.3)
    return figure


def main() -> None:
    run = Path(sys.argv[1])
    slices = open_dataset("phantom", "test", size=128, count=64)
    write_figure(contact_sheet(slices, range(6)), IMAGES / "phantoms.png")
    four = open_dataset("phantom", "test", size=128, count=64, variant="multiclass")
    process = CategoricalProcess(cosine(), four.info.num_classes)
    write_figure(forward_process(process, four.truth(1).modes[2], four.info), IMAGES / "forward.png")

    data = open_split(read_config(run / "train.yaml"), "test")
    result = evaluate(load(run), data, limit=32, options=SamplingOptions(n=100))
    write_figure(qualitative(result.kept, data.info), IMAGES / "samples.png")
    write_figure(mode_frequencies(result.modes.truth, result.modes.frequency, result.modes.names), IMAGES / "modes.png")


if __name__ == "__main__":
    main()
