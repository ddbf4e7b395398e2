"""Plans of imports, and importers of other packages."""

import pytest

from stochseg.data import IMPORTERS, plan_import
from stochseg.errors import UserError
from tests.support.packages import install_package

IMPORTER = """
from stochseg.data.importers.plans import Plan, Provenance
from stochseg.types import DatasetInfo

def plan(source):
    info = DatasetInfo(num_classes=2, image_channels=1)
    return Plan(info, Provenance(kind="mine", source=source.name), [], max_raters=1)
"""


def test_installed_packages_add_importers(tmp_path, monkeypatch):
    install_package(tmp_path, monkeypatch, "my_importer", IMPORTER, {"stochseg.importers": {"mine": "plan"}})
    assert "mine" in IMPORTERS
    plan = plan_import("mine", tmp_path)
    assert plan.provenance.source == tmp_path.name
    assert plan.stamp
    del IMPORTERS["mine"]


def test_broken_importer_of_a_package_fails_alone(tmp_path, monkeypatch):
    install_package(tmp_path, monkeypatch, "my_importer", "import nowhere", {"stochseg.importers": {"mine": "plan"}})
    with pytest.raises(UserError, match="'mine'.*my_importer.*nowhere"):
        plan_import("mine", tmp_path)
    with pytest.raises(UserError, match="'lidc'.*lidc-v1.*mine"):
        plan_import("lidc", tmp_path)
