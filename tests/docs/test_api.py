"""Functions that packages export explain their arguments and results."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest

PACKAGES = ("analysis", "core", "data", "inference", "metrics", "models", "plotting", "reports", "training")


@pytest.mark.parametrize("package", PACKAGES)
def test_exported_functions_explain_arguments_and_results(package):
    module = import_module(f"stochseg.{package}")
    exported = {name: getattr(module, name) for name in module.__all__}
    missing = []
    for name, function in exported.items():
        if not inspect.isfunction(function):
            continue
        text, signature = inspect.getdoc(function) or "", inspect.signature(function)
        if signature.parameters and "Args:" not in text:
            missing.append(f"{name}: Args")
        if signature.return_annotation not in (None, "None") and "Returns:" not in text:
            missing.append(f"{name}: Returns")
    assert not missing
