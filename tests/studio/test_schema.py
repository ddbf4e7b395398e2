"""Requests made from the OpenAPI document: none makes the server fail."""

import hypothesis
import pytest

schemathesis = pytest.importorskip("schemathesis")

pytestmark = pytest.mark.xdist_group("studio")
EXAMPLES = 3
"""Per operation: the suite has little time."""


def test_no_request_makes_the_server_fail(server):
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    seen = []
    for found in schema.exclude(path_regex="dicom-web").get_all_operations():  # it has a test of its own
        operation = found.ok()

        @hypothesis.settings(
            max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(hypothesis.HealthCheck)
        )
        @hypothesis.given(operation.as_strategy())
        def check(case):
            answer = case.call(headers={"X-Stochseg": "1"}, timeout=60)
            assert answer.status_code < 500, (case.method, case.path, answer.text)
            seen.append((case.method, case.path))

        check()
    assert len(set(seen)) > 20
