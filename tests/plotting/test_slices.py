"""Small pictures of volumes show one slice."""

import torch

from stochseg.plotting import comparison_grid, overview, qualitative
from stochseg.plotting.slices import as_images, disputed_slice
from tests.support.figures import assert_shows_something
from tests.support.volumes import INFO, SPACING, Balls, Smaller


def test_pictures_show_the_most_disputed_slice():
    maps = torch.zeros(3, 5, 8, 8, dtype=torch.long)
    maps[:, 1, :6, :6] = 1
    assert disputed_slice(maps) == 1, "all agree: the most foreground"
    maps[0, 3, 2:4, 2:4] = 1
    assert disputed_slice(maps) == 3
    example = Balls()[1]
    out = Smaller().sample(example.image[None], 4)
    ((flat, samples),) = as_images([(example, out)])
    index = disputed_slice(out.labels[0])
    assert torch.equal(samples.labels, out.labels[:, :, index])
    assert torch.equal(flat.raters, example.raters[:, index])
    assert flat.spacing == SPACING[1:]
    for figure in (
        qualitative([(example, out)] * 2, INFO),
        comparison_grid(example, {"a": out, "b": out}, INFO, columns=4),
        overview(example.image, out, INFO, columns=4),
    ):
        assert_shows_something(figure, dpi=30)
