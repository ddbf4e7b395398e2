"""One server with tiny models for all tests of the studio."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from stochseg.studio import Client
from tests.support.studio import Server, save_tiny_models

pytest.importorskip("fastapi")


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return save_tiny_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def model_options(tiny_models: list[Path]) -> list[object]:
    return [part for path in tiny_models for part in ("--model", path)]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, model_options: list[object]) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("studio")
    limits = ("samples=64", "upload_mb=20", "files=40", "pixels=2000000", "queue=64")
    running = Server(
        folder / "workspace", "--runs", folder / "runs", *model_options, *(f"--limit={limit}" for limit in limits)
    )
    running.folder = folder
    running.wait_until_ready()
    yield running
    running.stop()


@pytest.fixture
def client(server: Server) -> Client:
    return server.client
