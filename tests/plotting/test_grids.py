"""Grids of pictures."""

import itertools
from dataclasses import replace

import pytest
import torch
from matplotlib.colors import to_hex

from stochseg.core import CategoricalProcess, cosine
from stochseg.data import Phantoms
from stochseg.plotting import comparison_grid, contact_sheet, forward_process, overview, qualitative
from stochseg.types import Example
from tests.support.figures import assert_shows_something, texts
from tests.support.samples import as_samples

DATA = Phantoms("val", size=16)


def samples(n=3):
    return as_samples(torch.randint(2, (n, 16, 16)))


def rows(*rater_counts):
    examples = [Example(DATA[i].image, DATA[i].raters[:k], str(i)) for i, k in enumerate(rater_counts)]
    return [(example, samples()) for example in examples]


def heads(figure):
    """Titles and texts of all cells, in their order."""
    return [text for axis in figure.axes for text in (axis.title, *axis.texts) if text.get_text()]


GRIDS = {
    "qualitative": lambda: qualitative(rows(4, 1), DATA.info),
    "qualitative of one rater": lambda: qualitative(rows(1), DATA.info),
    "qualitative of many samples": lambda: qualitative([(DATA[0], samples(20))], DATA.info),
    "comparison": lambda: comparison_grid(
        DATA[0], {"ccdm": samples(8), "ccdm-fast lr=1e-3 model.options.components=8": samples(2)}, DATA.info
    ),
    "overview": lambda: overview(DATA[0].image, samples(11), DATA.info),
    "contact sheet": lambda: contact_sheet([DATA[i] for i in range(7)], DATA.info),
    "contact sheet of one rater": lambda: contact_sheet([rows(1)[0][0]], DATA.info),
    "forward process": lambda: forward_process(CategoricalProcess(cosine(50), 2), DATA.truth(0).modes[-1], DATA.info),
}


@pytest.mark.parametrize("name", GRIDS)
def test_heads_are_readable_when_the_figure_is_as_wide_as_a_page(name):
    figure = GRIDS[name]()
    assert_shows_something(figure)
    reduction = max(1.0, figure.get_size_inches()[0] / 10)
    written = heads(figure)
    assert written
    assert min(text.get_fontsize() for text in written) >= 9 * reduction - 1e-6


def test_every_column_has_a_head():
    said = [text.get_text() for text in heads(GRIDS["qualitative"]())]
    raters, drawn = (f"rater {i}" for i in range(1, 5)), (f"sample {i}" for i in range(1, 4))
    assert said == ["image", *raters, "mean", "entropy", *drawn]
    said = [text.get_text() for text in heads(GRIDS["overview"]())]
    assert said == ["image", "mean", "entropy", "fused", *(f"sample {i}" for i in range(11))]


def test_heads_of_neighboring_columns_do_not_overlap():
    figure = GRIDS["qualitative of many samples"]()
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in heads(figure)]
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


def many_raters(count, names=()):
    example = DATA[0]
    return Example(example.image, example.raters[:1].repeat(count, 1, 1), "a", rater_names=tuple(names))


MANY = [f"reader {letter}" for letter in "ABCDEFGHIJ"]


@pytest.mark.parametrize("figure", ["qualitative", "comparison", "contact sheet"])
@pytest.mark.parametrize("named", [True, False])
def test_all_raters_are_shown_by_name(figure, named):
    """Also those beyond the fourth, and of images with other raters than the first one."""
    expected = MANY if named else [f"rater {i + 1}" for i in range(10)]
    example, other = many_raters(10, expected if named else ()), many_raters(2, ["Ann", "Bob"])
    drawn = {
        "qualitative": lambda: qualitative([(example, samples()), (other, samples())], DATA.info),
        "comparison": lambda: comparison_grid(example, {"a": samples()}, DATA.info, columns=4),
        "contact sheet": lambda: contact_sheet([example, other], DATA.info),
    }[figure]()
    said = [text.get_text() for text in texts(drawn)]
    assert [name for name in expected if name not in said] == []
    if figure != "comparison":
        assert {"Ann", "Bob"} <= set(said)


def test_several_classes_are_named_and_mapped():
    data = Phantoms("val", size=16, variant="multiclass")
    out = as_samples(data.draw(1, 4, seed=0), data.info.num_classes)
    said = [text.get_text() for text in texts(overview(data[1].image, out, data.info))]
    for name in data.info.names[1:]:
        assert any("".join(text.split()) == f"P({name})".replace(" ", "") for text in said)
        assert name in said  # in the legend
    legend = [text.get_text() for text in texts(qualitative([(data[1], out)], data.info))]
    assert set(data.info.names[1:]) <= set(legend)


def test_contact_sheets_explain_their_colors():
    """A rater keeps its color where another one skipped the image; a single rater shows the classes."""
    full = DATA[0]
    named = replace(full, raters=full.raters[:3], rater_names=("ana", "ben", "chi"))
    partly = replace(full, raters=full.raters[1:3], rater_names=("ben", "chi"))
    (legend,) = contact_sheet([named, partly], DATA.info).legends
    colors = {text.get_text(): line.get_color() for text, line in zip(legend.texts, legend.legend_handles, strict=True)}
    assert list(colors) == ["ana", "ben", "chi"]
    single = replace(full, raters=full.raters[:1], rater_names=("ana",))
    (legend,) = contact_sheet([single], DATA.info).legends
    assert [text.get_text() for text in legend.texts] == list(DATA.info.names[1:])

    def drawn(example):
        figure = contact_sheet([named, example], DATA.info)
        return {to_hex(c) for part in figure.axes[1].collections for c in part.get_edgecolor()}

    assert colors["ana"] not in drawn(partly)
    assert drawn(partly) <= {colors["ben"], colors["chi"]}
