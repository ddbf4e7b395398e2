"""`stochseg compare`: its table and its files. The comparison itself: tests/experiments/test_compare.py."""


def test_methods_are_ranked_in_a_table(run, config, tmp_path):
    methods = (config, f"{config} lr=1e-9")
    arguments = ("--budget", "2", "-n", 2, "--limit", 1, "--set", "batch_size=2", "--out", tmp_path / "out")
    code, out, _ = run("compare", *methods, *arguments, "--device", "cpu")
    assert code == 0
    assert "HM-IoU" in out
    assert "lr=1e-9" in out
    assert "`batch_size=2`" in (tmp_path / "out/comparison.md").read_text()


def test_an_unknown_method_is_named(run, tmp_path):
    code, _, messages = run("compare", "ccdm-fst", "--out", tmp_path / "out")
    assert code == 2
    assert "'ccdm-fst'" in messages
    assert not (tmp_path / "out").exists()
