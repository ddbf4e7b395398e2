"""A studio in a process of its own, with tiny models."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import stochseg
from stochseg.models import Calibration, SamplingOptions
from stochseg.models.calibration import IntervalOffset
from stochseg.studio import Client, StudioError
from stochseg.types import DatasetInfo, Preparation
from tests.support.models import lively, perturb


def save_tiny_models(folder: Path) -> list[Path]:
    """Models of a millisecond: "tiny" of images and "tiny-3d" of volumes take points, "tiny-raters" has two raters.

    The last is calibrated for four samples as any of its raters would draw them.
    """
    saved = []
    for name, dims in (("tiny", 2), ("tiny-3d", 3)):
        info = DatasetInfo(
            num_classes=2,
            image_channels=1,
            spatial_dims=dims,
            class_names=("background", "nodule"),
            preparation=Preparation(crop=(16, 16), scale="min-max", units="HU", slices=4 if dims == 3 else None),
        )
        options = {"base": 4, "multipliers": [1, 2], "blocks": 1, "num_timesteps": 8, "evaluations": 2}
        saved.append(Path(stochseg.save(perturb(stochseg.create("ccdm", info=info, **options)), folder / name)))
    info = DatasetInfo(num_classes=2, image_channels=1, rater_names=("ana", "ben"))
    model = lively("ccdm-fast+mixture", info=info, rater_conditioning=True)
    area = {"measure": "area", "label": 1, "confidence": 0.9, "covered": 0.9, "covered_before": 0.5, "width_ratio": 2.0}
    model.calibration = Calibration(
        data="mine",
        data_sha256="0" * 64,
        split="val",
        patients=4,
        cases=9,
        date="2026-01-01",
        sampling=SamplingOptions(n=4).or_default(model.default_sampling()),
        evaluations=1,
        intervals=(IntervalOffset(**area, offset=0.5),),
    )
    return [*saved, Path(stochseg.save(model, folder / "tiny-raters"))]


class Server:
    """A running `stochseg studio`."""

    def __init__(self, workspace: Path, *args: object):
        command = [sys.executable, "-m", "stochseg", "studio", "--no-browser", "--workspace", workspace, *args]
        self.command = [*map(str, command)]
        self.port = 0
        self.start()

    def start(self) -> None:
        """Start it, on the same port as before."""
        source = str(Path(stochseg.__file__).parents[1])
        environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [*self.command, "--port", str(self.port)], stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdout is not None
        self.link = ""
        for line in self.process.stdout:
            if line.startswith("open "):
                self.link = line.split()[1]
                break
        assert self.link, "the server did not start"
        self.port = int(self.link.split(":")[2].partition("/")[0])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def client(self) -> Client:
        return Client(self.url)

    def wait_until_ready(self) -> None:
        """Wait for its worker, which a busy machine may start slowly."""

        def ready():
            try:
                return self.client.models()
            except StudioError as error:
                if error.status != 503:
                    raise
                return None

        wait_for(ready, 300)

    def children(self) -> list[int]:
        """Processes of the server: the worker, and those that read uploads."""
        found = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True).stdout
        return [int(pid) for pid in found.split()]

    def worker(self) -> int | None:
        """The process that draws samples: the largest, because it alone holds PyTorch and the models."""
        sizes: dict[int, int] = {}
        for pid in self.children():
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
                if b"spawn_main" in words:
                    sizes[pid] = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return max(sizes, key=sizes.__getitem__, default=None)

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def stop(self) -> int:
        """End it as Ctrl-C would; returns its exit code."""
        self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(20)
        finally:
            if self.process.poll() is None:
                self.kill()
            assert self.process.stdout is not None
            self.process.stdout.close()


def wait_for(condition, seconds: float = 60.0):
    """Wait until a function returns something true, and return it."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("waited in vain")
