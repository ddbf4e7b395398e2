"""A killed server or worker loses no finished job, and unfinished ones are done after all."""

import os
import random
import signal
import time

import pytest

from tests.studio.test_flow import gray, png
from tests.support.studio import Server, wait_for

pytestmark = pytest.mark.xdist_group("studio")


def test_kills_lose_nothing(tmp_path, model_options):
    server = Server(tmp_path / "workspace", *model_options)
    try:
        client, chance = server.client, random.Random(0)
        server.wait_until_ready()
        input = client.upload_parts([("files", "a.png", png(gray((64, 64))))])["id"]
        done = client.wait(client.submit(input, "tiny", samples=3)["id"])["id"]
        samples = [client.sample(done, i) for i in range(3)]
        jobs = [client.submit(input, "tiny", samples=8, evaluations=8, seed=seed, keep=True)["id"] for seed in range(4)]
        time.sleep(chance.uniform(0, 0.3))
        os.kill(server.worker(), signal.SIGKILL)
        wait_for(lambda: "worker_deaths" in client.request("GET", "/metrics").decode())
        time.sleep(chance.uniform(0, 0.3))
        server.kill()
        server.start()
        for job in jobs:
            assert client.wait(job, 120)["state"] == "done"
            assert len(client.result(job)["samples"]) == 8
        assert [client.sample(done, i) for i in range(3)] == samples
        assert len(client.jobs()) == 5
        for job in jobs:
            numbers = [event.id for event in client.events(job)]
            assert numbers == list(range(1, len(numbers) + 1))
    finally:
        assert server.stop() == 130
    assert not (tmp_path / "workspace" / ".lock").exists()
