"""Training configs: learning-rate schedules, overrides, YAML, recipes."""

from itertools import pairwise

import pytest

from stochseg.errors import UserError
from stochseg.experiments.recipes import RECIPES, fresh_model, recipe
from stochseg.models import MODELS
from stochseg.models.registry import find_class
from stochseg.training import override, read_config
from stochseg.training.config import write_config


@pytest.mark.parametrize(
    ("changes", "points"),
    [
        (["decay=constant"], {0: 1, 50: 1, 100: 1}),
        (["decay=polynomial"], {0: 1, 50: 0.5 + 0.5e-2, 100: 1e-2}),
        (["decay=polynomial", "power=2"], {0: 1, 50: 0.25 * 0.99 + 1e-2, 100: 1e-2}),
        (["decay=tail", "tail=0.5"], {0: 1, 50: 1, 75: 0.505, 100: 1e-2}),
        (["decay=cosine"], {0: 1, 25: 1e-2 + 0.99 * (1 + 0.5**0.5) / 2, 50: 0.505, 100: 1e-2}),
        (["decay=constant", "warmup=4"], {0: 0.2, 3: 0.8, 4: 1, 100: 1}),
        (["decay=polynomial", "warmup=50"], {49: 50 / 51, 50: 1, 75: 0.505, 100: 1e-2}),
    ],
)
def test_learning_rate(tiny_run, changes, points):
    config = tiny_run("steps=100", "lr=0.1", "final_lr=0.001", *changes)
    for step, factor in points.items():
        assert config.lr_factor(step) == pytest.approx(factor)


def test_progress_is_that_of_the_steps_or_of_the_time_whichever_is_further(tiny_run):
    assert tiny_run("steps=40").progress(10, 1e9) == 0.25
    timed = tiny_run("steps=40", "minutes=2")
    assert [timed.progress(10, 0), timed.progress(10, 60), timed.progress(10, 150)] == [0.25, 0.5, 1.0]


@pytest.mark.parametrize("decay", ["polynomial", "cosine", "constant", "tail"])
def test_the_learning_rate_rises_only_during_warmup(tiny_run, decay):
    config = tiny_run("steps=40", f"decay={decay}", "warmup=10")
    factors = [config.lr_factor(step) for step in range(60)]
    assert all(a < b for a, b in pairwise(factors[:11]))
    assert all(a >= b for a, b in pairwise(factors[10:]))
    assert min(factors) > 0
    assert len(set(factors[40:])) == 1


def test_overrides_are_nested_and_in_yaml():
    values = {"a": {"b": 1, "c": [1, 2]}, "d": "x"}
    out = override(values, ["a.b=2.5", "a.c=[3]", "d=null", "e.f.g=true", "h=a=b", "i="])
    assert out == {"a": {"b": 2.5, "c": [3]}, "d": None, "e": {"f": {"g": True}}, "h": "a=b", "i": None}
    assert values == {"a": {"b": 1, "c": [1, 2]}, "d": "x"}


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("steps", "expected key=value.*steps=2000"),
        ("=3", "expected key=value"),
        ("steps.x=3", "'steps' is a value"),
        ("a=[1", "YAML"),
    ],
)
def test_invalid_overrides(assignment, says):
    with pytest.raises(UserError, match=says) as caught:
        override({"steps": 1}, [assignment])
    assert repr(assignment) in str(caught.value)


def test_scientific_numbers_are_numbers(tiny_run):
    assert tiny_run("lr=5e-4").lr == 5e-4


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("stepz=3", r"unknown key 'stepz'; known keys: .*batch_size.*steps"),
        (
            "validation.evry=3",
            r"unknown key 'validation\.evry'; known keys: calibration_images, evaluations, every, images, num_samples",
        ),
        ("data.root=x", r"unknown key 'data\.root'; known keys: .*options"),
        ("steps=0", r"'steps'.*greater than or equal to 1; got 0"),
        ("lr=-1", r"'lr'.*greater than 0; got -1"),
        ("ema=1", r"'ema'.*less than 1; got 1"),
        ("decay=step", r"'decay'.*'polynomial', 'cosine', 'constant' or 'tail'; got 'step'"),
        ("steps=many", r"'steps'.*integer.*got 'many'"),
    ],
)
def test_invalid_configs(tiny_run, change, says):
    with pytest.raises(UserError, match=says):
        tiny_run(change)


def test_yaml_round_trip(tiny_run, tmp_path):
    config = tiny_run("lr=3e-7", "clip=0.5", "model.options.multipliers=[1,1.5]")
    write_config(config, tmp_path / "train.yaml")
    assert read_config(tmp_path / "train.yaml") == config
    assert recipe(str(tmp_path / "train.yaml"), ["steps=9"]).steps == 9


@pytest.mark.parametrize(
    ("text", "says"),
    [("a: [", "YAML"), ("- 1", "data, model, steps"), ("steps: 3", "Field required")],
)
def test_invalid_config_files(tmp_path, text, says):
    (tmp_path / "train.yaml").write_text(text)
    with pytest.raises(UserError, match=rf"train\.yaml.*{says}"):
        read_config(tmp_path / "train.yaml")
    with pytest.raises(UserError, match=r"other\.yaml is missing"):
        read_config(tmp_path / "other.yaml")


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_recipe_has_a_valid_config_and_model(name):
    assert fresh_model(name).name == recipe(name).model.name


def test_recipes_of_the_paper_use_its_grid_and_its_average():
    for name in ("lidc-9m", "lidc-41m", "cityscapes-30m"):
        config = recipe(name)
        assert config.model.resolved_options()["grid"] == "trailing"
        # The last update before the end has the full decay.
        assert (1 + config.steps) / (1 + config.steps + config.ema_warmup) > config.ema


def test_published_scores_of_old_files_are_read_and_dropped(tiny_run, tmp_path):
    write_config(tiny_run(), tmp_path / "train.yaml")
    with (tmp_path / "train.yaml").open("a") as file:
        file.write("published: {ged_16: 0.212}\n")
    assert read_config(tmp_path / "train.yaml") == tiny_run()


def test_rows_of_the_paper_are_recipes():
    config = recipe("paper:cityscapes-256x512/ccdm-30m-dino", ["steps=7"])
    assert (config.model.name, config.steps, config.batch_size) == ("ccdm", 7, 16)
    with pytest.raises(UserError, match=r"training of the paper 'lidc-v1/ccdm'.*lidc-v1/ccdm-9m"):
        recipe("paper:lidc-v1/ccdm")


@pytest.mark.parametrize("name", [*sorted(MODELS), "smp:unet/resnet18", "smp:upernet/tu-swin_tiny_patch4_window7_224"])
def test_a_model_by_its_own_name_trains_with_its_defaults(name):
    config = recipe(name, ["steps=7"])
    assert (config.model.name, config.steps) == (name, 7)
    for key, value in find_class(name).training_defaults.items():
        assert getattr(config, key) == value
    assert recipe(name, ["lr=0.125"]).lr == 0.125


def test_an_unknown_recipe_lists_the_known_ones():
    for build in (recipe, fresh_model):
        with pytest.raises(UserError, match=r"unknown recipe 'lidc'; known: .*lidc-9m.*phantom-tiny"):
            build("lidc")
