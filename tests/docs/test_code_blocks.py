"""Every code block of README and docs runs, or is at least parsed where its page says why it cannot run."""

from __future__ import annotations

import ast
import gzip
import json
import re
import shlex
import shutil
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import nibabel
import numpy as np
import pytest
import typer
import yaml
from PIL import Image

from stochseg.cli.app import app
from stochseg.data import DATASETS, IMPORTERS, Phantoms
from stochseg.data.example import write_example_folder
from stochseg.data.folder import init_folder
from stochseg.experiments.recipes import recipe
from stochseg.inference import ENGINES, PredictOptions, predict
from stochseg.inference.writers import WRITERS
from stochseg.metrics import METRIC_TABLE, METRICS
from stochseg.models import MODELS, create
from stochseg.training import train
from tests.docs.blocks import PAGES, ROOT, Block, Page, read_page, shell_lines
from tests.support.images import nifti_bytes
from tests.support.nnunet import softmax_field, write_fold
from tests.support.oblique import write_volume
from tests.support.scans import ct, write_nifti

CHECKED = [page for page in map(read_page, PAGES) if page.blocks]
# Arguments that make commands fast; the last of several values of an option counts.
TOWERS = ["model.options.tower=[8,8]", "model.options.light=[8,8]", "model.options.components=2"]
UNET = ["model.options.channels=[4,8]"]
SHORT = ["steps=1", "batch_size=2", "validation.images=1", "validation.num_samples=2"]
FAST = {
    "data example": ["--count", "20", "--size", "32"],
    "evaluate": ["-n", "2", "--limit", "1"],
    "predict": ["-n", "2"],
    "report": ["-n", "2", "--limit", "1", "--curve-images", "1"],
}


def test_pages_were_found():
    assert len(CHECKED) > 15
    assert sum(block.runs for page in CHECKED for block in page.blocks if block.language in ("python", "sh")) > 30


def test_every_block_names_a_known_language():
    known = {"python", "sh", "toml", "yaml", "json", "text", ""}
    unknown = [(page.name, block.line) for page in CHECKED for block in page.blocks if block.language not in known]
    assert not unknown


@pytest.fixture(scope="module")
def prepare(tmp_path_factory):
    """Put a file or folder that pages need into the current folder; each is made once."""
    made: dict[Callable[[Path], None], Path] = {}

    def copy(name: str) -> None:
        make = PREPARE[name]
        if make not in made:
            made[make] = tmp_path_factory.mktemp("prepared") / Path(name).name
            make(made[make])
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if made[make].is_dir() else shutil.copy)(made[make], name)

    return copy


@pytest.fixture(autouse=True)
def _registries_stay():
    """Remove what a page registers, so that other tests do not meet it."""
    registries = (MODELS, DATASETS, IMPORTERS, ENGINES, WRITERS, METRICS, METRIC_TABLE)
    before = [set(registry) for registry in registries]
    yield
    for registry, names in zip(registries, before, strict=True):
        for name in set(registry) - names:
            del registry[name]


@pytest.mark.parametrize("page", CHECKED, ids=lambda page: page.name)
def test_blocks_of_page_run(page: Page, run, prepare, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in page.needs:
        prepare(name)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in page.blocks:
        where = f"{page.name}:{block.line}"
        if block.language == "python":
            run_python(block, namespace, where)
        elif block.language == "sh":
            for line in shell_lines(block.code):
                check_shell(line, run if block.runs else None, where)
        elif block.language in PARSERS:
            PARSERS[block.language](block.code)


PARSERS: dict[str, Callable[[str], object]] = {"yaml": yaml.safe_load, "json": json.loads}


def run_python(block: Block, namespace: dict[str, object], where: str) -> None:
    tree = compile(block.code, where, "exec", ast.PyCF_ONLY_AST)
    if block.runs:
        with redirect_stdout(StringIO()):
            exec(compile(tree, where, "exec"), namespace)


# --- shell ------------------------------------------------------------------------------------------------


def check_shell(line: str, run: Callable[..., tuple[int, str, str]] | None, where: str) -> None:
    """Run a line of `stochseg`, or parse it if `run` is None; check that the files of other commands exist."""
    words = shlex.split(line)
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):  # environment variables
        words = words[1:]
    if words[0] == "stochseg":
        arguments = words[1:]
    elif words[:1] == ["torchrun"] and "stochseg" in words:
        arguments, run = words[words.index("stochseg") + 1 :], None
    else:
        return check_other(words, where)
    parse(arguments, where)
    if run is not None:
        code, out, messages = run(*arguments, *fast(arguments))
        assert code == 0, f"{where}: stochseg {shlex.join(arguments)}\n{out}\n{messages}"


def parse(arguments: list[str], where: str) -> None:
    """Check a command and its options without running it."""
    command, context, words = typer.main.get_command(app), None, list(arguments)
    try:
        while hasattr(command, "commands") and not words[0].startswith("-"):
            context = command.make_context("stochseg", [], parent=context, resilient_parsing=True)
            command = command.commands[words.pop(0)]
        command.make_context(arguments[0], words, parent=context)
    except typer.Exit:  # --version
        pass
    except Exception as error:
        raise AssertionError(f"{where}: stochseg {shlex.join(arguments)}: {error!r}") from error
    if arguments[0] == "train" and not arguments[1].endswith(".yaml"):
        recipe(arguments[1], [word for word in arguments[2:] if re.match(r"[a-z_.]+=", word)])


def fast(arguments: list[str]) -> list[str]:
    if arguments[0] == "train":
        return [*SHORT, *(UNET if arguments[1] == "prob-unet" else TOWERS)]
    return FAST.get(arguments[0], FAST.get(" ".join(arguments[:2]), []))


def check_other(words: list[str], where: str) -> None:
    match words:
        case ["make", *targets]:
            makefile = (ROOT / "Makefile").read_text()
            assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets), where
        case ["pip", "install", *rest]:
            known = re.findall(r"^(\w+) = \[$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
            extras = [name for group in re.findall(r"\[(.*?)\]", " ".join(rest)) for name in group.split(",")]
            assert set(extras) <= set(known), where
        case ["python", "-m", module, *_]:
            assert (ROOT / module.replace(".", "/")).with_suffix(".py").is_file(), f"{where}: no {module}"
        case ["python", script, *_]:
            assert (ROOT / script).is_file(), f"{where}: no {script}"
        case ["source" | "cd" | "git", *_]:
            pass
        case _:
            raise AssertionError(f"{where}: unknown command {words[0]!r}")


# --- files that pages need --------------------------------------------------------------------------------


def make_data(path: Path) -> None:
    init_folder(write_example_folder(path, count=20, size=32))


def make_run(path: Path) -> None:
    changes = [*SHORT, *TOWERS, "data.options.size=32", "data.train.count=4", "data.val.count=4"]
    train(recipe("phantom-tiny", changes), path, device="cpu")
    (path / "images").mkdir()
    for i, image in enumerate(map(Phantoms("test", size=32).raw, range(4))):
        Image.fromarray(image).save(path / "images" / f"phantom-test-{i:05d}.png")


def make_series(path: Path) -> None:
    write_volume(path, ct((6, 140, 150), (3, 60, 83), (2.5, 9.0, 7.0)))


def make_ct(path: Path) -> None:
    write_nifti(path, ct((6, 140, 150), (3, 60, 83), (2.5, 9.0, 7.0)))


def make_table(path: Path) -> None:
    path.write_text("input,id,x,y,z\nct-series,left upper lobe,83,60,3\nct-series,lingula,40,90,4\n")


def make_scans(path: Path) -> None:
    path.mkdir()
    make_picture(path / "a.png")
    volume = nifti_bytes(np.zeros((32, 32, 2), np.uint8), (1, 1, 1))
    (path / "b.nii.gz").write_bytes(gzip.compress(volume))


def make_predictions(path: Path) -> None:
    model = create("ccdm-fast", tower=[8, 8], light=[8, 8])
    make_picture(path.with_suffix(".png"))
    predict(model, [path.with_suffix(".png")], path, PredictOptions(n=2))


def make_folds(path: Path) -> None:
    for fold in range(3):
        write_fold(path / f"fold_{fold}", {"a": softmax_field((9, 8, 6), fold)}, np.diag([2.0, 2.0, 3.0, 1.0]))


def make_images(path: Path) -> None:
    path.mkdir()
    values = np.random.default_rng(0).normal(size=(9, 8, 6)).astype(np.float32)
    nibabel.save(nibabel.Nifti1Image(values, np.diag([2.0, 2.0, 3.0, 1.0])), path / "a_0000.nii.gz")


def make_raters(path: Path) -> None:
    for rater, seed in (("ana", 0), ("ben", 1)):
        (path / rater).mkdir(parents=True)
        labels = softmax_field((9, 8, 6), seed, 2).argmax(0).astype(np.uint8)
        nibabel.save(nibabel.Nifti1Image(labels, np.diag([2.0, 2.0, 3.0, 1.0])), path / rater / "a.nii.gz")


def make_picture(path: Path) -> None:
    Image.fromarray(Phantoms("test", size=128).raw(0)).save(path)


PREPARE: dict[str, Callable[[Path], None]] = {
    "my-data": make_data,
    "runs/mine": make_run,
    "runs/demo": make_run,
    "scans": make_scans,
    "ct-series": make_series,
    "ct.nii.gz": make_ct,
    "lesions.csv": make_table,
    "predictions": make_predictions,
    "folds": make_folds,
    "imagesTs": make_images,
    "labels": make_raters,
    "slice.png": make_picture,
    "nodule.png": make_picture,
}
