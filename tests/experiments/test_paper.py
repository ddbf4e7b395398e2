"""The paper's tables: all numbers, trainings as its text says, rows that run, resume and fill the table."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from stochseg.data import Phantoms
from stochseg.errors import UserError
from stochseg.experiments.paper import FORMATS, TABLES, RunSettings, find_table, format_table, run_rows, runner
from stochseg.experiments.paper.costs import cost, measure_row
from stochseg.experiments.paper.figures import FIGURES, FigureSettings, draw_figure
from stochseg.experiments.paper.listing import list_rows
from stochseg.experiments.paper.runner import SCORES, training_config
from stochseg.experiments.paper.synthetic import write_synthetic
from stochseg.experiments.paper.trainings import DATA, TRAININGS
from stochseg.models import create
from stochseg.training import open_split
from tests.support.extras import import_or_skip

TINY = 1e-5
QUIET = Console(quiet=True)


def test_every_printed_number_is_there():
    """Counted in the paper: 61 in Table 1, 32 in Table 2, 12 in Table 3; in the supplement 8, 20 and 16."""
    counts = {name: table.count_cells() for name, table in TABLES.items()}
    assert counts["lidc-v1"] + counts["lidc-v2"] == 61
    assert counts["cityscapes-128x256"] + counts["cityscapes-256x512"] == 32
    assert counts["capacity"] == 12
    assert counts["diversity-v1"] + counts["diversity-v2"] == 8
    assert counts["model-size"] == 20
    assert counts["unet-ce-128x256"] + counts["unet-ce-256x512"] == 16
    assert sum(counts.values()) == 149


@pytest.mark.parametrize("name", TABLES)
def test_rows_fit_into_80_columns_without_broken_words(name):
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(list_rows(name))
    shown = set(console.export_text().split())
    for row in find_table(name).rows:
        printed = [cell.printed.partition("±") for cell in row.cells.values()]
        assert shown >= {
            row.training,
            *(value for value, _, _ in printed),
            *(f"±{sd}" for _, sign, sd in printed if sign),
        }


@pytest.mark.parametrize(
    ("table", "training", "column", "score", "printed"),
    [
        ("lidc-v1", "ccdm-9m", "hm_iou_32", "hm_iou_32", "0.631±0.002"),
        ("lidc-v1", "jprob-unet", "ged_32", "ged_32", "0.206±0.00"),
        ("lidc-v2", "car", "ged_50", "ged_50", "0.248±0.004"),
        ("cityscapes-256x512", "hrnet-w48", "best", "best_miou_mean_1", "64.2"),
        ("capacity", "ccdm-22m", "10", "miou_mean_10", "53.6"),
        ("unet-ce-128x256", "unet-ce-dino", "final", "miou_mean_1", "53.4"),
        ("diversity-v2", "ccdm-9m", "diversity_100", "diversity_100", "0.515±0.002"),
        ("model-size", "ccdm-41m", "ged_100", "ged_100", "0.177"),
    ],
)
def test_numbers_stand_in_their_cells(table, training, column, score, printed):
    (row,) = [row for row in find_table(table).rows if row.training == training]
    assert (row.cells[column].score, row.cells[column].printed) == (score, printed)


def test_samples_of_a_fused_map_are_those_of_the_row():
    rows = [row for row in find_table("cityscapes-128x256").rows if row.training == "ccdm-30m"]
    scores = {row.cells["final"].score: row.cells["final"].value for row in rows}
    assert scores == {"miou_mean_1": 53.2, "miou_mean_5": 55.4, "miou_mean_10": 56.2}


def test_numbers_of_one_training_agree_between_tables():
    seen: dict[tuple[str, str, str], float] = {}
    for table in TABLES.values():
        for row in table.rows:
            for cell in row.cells.values():
                assert seen.setdefault((table.data, row.training, cell.score), cell.value) == cell.value


def test_every_row_has_a_training_of_the_printed_size():
    for table in TABLES.values():
        for row in table.rows:
            price = cost(table.data, row.training)
            sizes = [float(size) for size in re.findall(r"[\d.]+(?=M)", row.parameters)]
            if sizes:  # a frozen ViT-S counts 21.7M, which the paper rounds down
                assert price.parameters == pytest.approx(1e6 * sum(sizes), rel=0.065), row.training
            assert price.gpu_hours > 0


def test_recorded_costs_are_those_of_the_networks():
    measured = measure_row("lidc-v1", "prob-unet")
    price = cost("lidc-v1", "prob-unet")
    assert (measured["parameters"], float(measured["gflop"])) == (price.parameters, price.gflop)


@pytest.mark.parametrize(
    ("data", "row", "expected"),
    [
        ("lidc-v1", "ccdm-9m", {"batch_size": 64, "lr": 1e-4, "final_lr": 1e-6, "ema": 0.99995}),
        ("cityscapes-128x256", "ccdm-30m", {"batch_size": 32, "steps": 800 * 2975 // 32, "ema": 0.999}),
        ("cityscapes-256x512", "ccdm-30m-dino", {"batch_size": 16, "steps": 148_750, "optimizer": "adam"}),
        ("cityscapes-256x512", "unet-ce", {"batch_size": 16, "steps": 148_750, "lr": 1e-4}),
        (
            "cityscapes-256x512",
            "deeplabv3-r50",
            {"batch_size": 32, "steps": 46_484, "lr": 1e-2, "weight_decay": 5e-5, "optimizer": "sgd", "ema": 0.0},
        ),
        (
            "cityscapes-128x256",
            "upernet-swin-t",
            {"optimizer": "adamw", "lr": 1e-4, "weight_decay": 1e-2, "power": 1.0, "warmup": 1500},
        ),
    ],
)
def test_trainings_have_the_settings_of_the_paper(tmp_path, data, row, expected):
    config = training_config(data, row, 0, RunSettings(tmp_path, encoder_weights="weights.pth"))
    assert {key: getattr(config, key) for key in expected} == expected
    assert config.validation.select == ("miou" if data.startswith("cityscapes") else "ged")
    assert config.data.augment == ("flip-jitter" if data.startswith("cityscapes") else "flip-rotate")


def test_every_training_is_valid_at_full_and_at_small_scale(tmp_path):
    for data, row in TRAININGS:
        full = training_config(data, row, 1, RunSettings(tmp_path, encoder_weights="weights.pth"))
        small = training_config(data, row, 1, RunSettings(tmp_path, scale=TINY))
        assert full.seed == small.seed == 1
        assert small.model.name == full.model.name
        assert small.steps < 10 < full.steps


@pytest.mark.parametrize("data", DATA)
def test_synthetic_data_have_the_form_of_the_paper(tmp_path, data):
    row = next(row for name, row in TRAININGS if name == data)
    store = write_synthetic(DATA[data], tmp_path / "store.h5")
    config = training_config(data, row, 0, RunSettings(tmp_path, store, scale=TINY))
    example = open_split(config, "train")[0]
    form = DATA[data]
    assert example.image.shape == (form.channels, *form.size)
    assert len(example.raters) == (4 if form.classes == 2 else 1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("paper")
    run_rows(find_table("lidc-v2"), ["prob-unet"], RunSettings(out, "synthetic", 2, TINY, device="cpu"), QUIET)
    return out


def test_a_row_fills_its_cells_and_says_that_it_is_not_comparable(finished):
    text = format_table(find_table("lidc-v2"), finished, "csv")
    ours = [line for line in csv.DictReader(io.StringIO(text)) if line["source"] == "ours"]
    assert [line["row"] for line in ours] == ["Prob. U-Net"]
    scores = [json.loads((finished / f"lidc-v2/prob-unet/seed-{i}/{SCORES}").read_text())["scores"] for i in (0, 1)]
    mean = (scores[0]["ged_16"] + scores[1]["ged_16"]) / 2
    assert float(ours[0]["GED16"].partition("±")[0]) == pytest.approx(mean, abs=6e-4)
    assert "±" in ours[0]["GED16"]
    assert ours[0]["GED50"] == ""  # the paper has no such number
    for style in FORMATS:
        assert "NOT COMPARABLE" in format_table(find_table("lidc-v2"), finished, style)
        assert "on synthetic data" in format_table(find_table("lidc-v2"), finished, style)


def test_finished_rows_are_kept_and_another_scale_is_refused(finished):
    file = finished / f"lidc-v2/prob-unet/seed-0/{SCORES}"
    before = file.stat().st_mtime_ns
    settings = RunSettings(finished, "synthetic", 1, TINY, device="cpu")
    assert run_rows(find_table("lidc-v2"), ["prob-unet"], settings, QUIET) == [file]
    assert file.stat().st_mtime_ns == before
    for other in ({"scale": 2e-5}, {"minutes": 0.1}):
        with pytest.raises(UserError, match="1e-05.*(2e-05|minutes)"):
            run_rows(find_table("lidc-v2"), ["prob-unet"], RunSettings(finished, "synthetic", 1, **other), QUIET)


def test_a_time_limit_ends_training_and_scoring(tmp_path, tiny_run):
    settings = RunSettings(tmp_path, minutes=0.5)
    config, full = (training_config("lidc-v2", "ccdm-9m", 0, each) for each in (settings, RunSettings(tmp_path)))
    assert (config.minutes, config.batch_size, config.steps) == (0.5, full.batch_size, full.steps)
    assert config.validation.every >= config.steps, "validated once, at the end"
    data = Phantoms("test", size=8, count=40)
    model = create("ccdm", 2, 1, **tiny_run().model.options)
    seen = []
    model.denoiser.unet.register_forward_hook(lambda *_: seen.append(1))
    runner._evaluate(model, data, 2, 0, RunSettings(tmp_path, minutes=1e-9))
    assert len(seen) == 2 * 2, "one image for the time, one to score; two network evaluations each"
    seen.clear()
    runner._evaluate(model, data, 2, 0, settings)
    assert len(seen) == 2 * 41, "all images fit"


def test_scores_of_a_time_limit_are_marked(tmp_path):
    table = find_table("lidc-v2")
    file = tmp_path / "lidc-v2/car/seed-0" / SCORES
    file.parent.mkdir(parents=True)
    record = {"scale": 1.0, "scores": {"ged_16": 0.5}}
    for minutes, marked in ((5.0, True), (None, False)):
        file.write_text(json.dumps({**record, "minutes": minutes}))
        text = format_table(table, tmp_path, "markdown")
        assert ("NOT COMPARABLE" in text) == ("5 minutes" in text) == marked
    file.write_text(json.dumps(record))  # of an older version
    assert "NOT COMPARABLE" not in format_table(table, tmp_path, "markdown")


def test_rivals_on_cityscapes_have_final_and_best_scores(tmp_path):
    import_or_skip("segmentation_models_pytorch")
    settings = RunSettings(tmp_path, "synthetic", 1, TINY, device="cpu")
    (file,) = run_rows(find_table("cityscapes-128x256"), ["deeplabv3-r50"], settings, QUIET)
    scores = json.loads(file.read_text())["scores"]
    assert {"miou_mean_1", "best_miou_mean_1"} <= scores.keys()
    (line,) = [
        line
        for line in csv.DictReader(io.StringIO(format_table(find_table("cityscapes-128x256"), tmp_path, "csv")))
        if line["source"] == "ours"
    ]
    assert float(line["mIoU, final"]) == pytest.approx(100 * scores["miou_mean_1"], abs=0.06)


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        (["nosuch"], {"scale": TINY, "data": "synthetic"}, "nosuch.*ccdm-9m"),
        ([], {"scale": 0.0}, "scale.*0"),
        ([], {"scale": 0.5, "minutes": 1.0}, "minutes.*scale"),
        ([], {"minutes": 0.0}, "minutes.*0"),
        (["prob-unet"], {"data": "synthetic"}, "synthetic.*--scale"),
        (["prob-unet"], {"data": Path("nosuch.h5")}, "nosuch"),
    ],
)
def test_mistakes_are_found_before_any_training(tmp_path, rows, settings, message):
    with pytest.raises(UserError, match=message):
        run_rows(find_table("lidc-v2"), rows, RunSettings(tmp_path / "out", **settings), QUIET)
    assert not list(tmp_path.glob("out/*/"))


def test_data_of_another_form_are_refused(tmp_path):
    store = write_synthetic(DATA["lidc-v1"], tmp_path / "v1.h5")
    with pytest.raises(UserError, match=r"19 classes.*data import cityscapes-128x256"):
        run_rows(find_table("capacity"), [], RunSettings(tmp_path, store, scale=TINY), QUIET)


def test_a_row_with_pretrained_weights_asks_for_them(tmp_path):
    for row in ("hrnet-w48", "ccdm-30m-dino"):
        with pytest.raises(UserError, match=f"{row}.*--encoder-weights"):
            training_config("cityscapes-128x256", row, 0, RunSettings(tmp_path))


def test_figures_of_data_alone(tmp_path):
    for name in ("examples", "forward"):
        store = write_synthetic(DATA[FIGURES[name].data], tmp_path / f"{name}.h5")
        assert draw_figure(name, FigureSettings(tmp_path, store)).axes


def test_a_figure_says_which_row_to_train(tmp_path):
    store = write_synthetic(DATA["lidc-v1"], tmp_path / "v1.h5")
    for name in ("lidc-samples", "steps"):
        with pytest.raises(UserError, match="paper run lidc-v1 --row ccdm-9m"):
            draw_figure(name, FigureSettings(tmp_path, store))
    with pytest.raises(UserError, match="nosuch.*steps"):
        draw_figure("nosuch", FigureSettings(tmp_path))
