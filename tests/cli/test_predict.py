"""`stochseg predict`: its options and messages. The predictions themselves: tests/inference."""

import tifffile


def test_samples_depend_on_the_seed(run, trained, slice_png, tmp_path):
    for seed in (0, 1):
        arguments = ("-n", 3, "--seed", seed, "--overview", "--out", tmp_path / f"out-{seed}")
        code, out, _ = run("predict", trained, slice_png, *arguments)
        assert code == 0
        assert str(tmp_path / f"out-{seed}/slice") in out
    first, second = (tifffile.imread(tmp_path / f"out-{seed}/slice/mean.tif") for seed in (0, 1))
    assert (first != second).any()
    assert (tmp_path / "out-0/slice/overview.png").is_file()


def test_paths_are_neither_wrapped_nor_read_as_markup(run, trained, slice_png, tmp_path):
    name = "[red]" + "long" * 40
    image = slice_png.rename(tmp_path / f"{name}.png")
    code, out, _ = run("predict", trained, image, "-n", 1, "--out", tmp_path / "out")
    assert code == 0
    assert str(image) in out
    code, _, messages = run("predict", trained, tmp_path / f"{name}-absent.png", "--out", tmp_path / "out")
    assert code == 2
    assert f"{name}-absent.png" in messages
