"""The log of a run."""

from stochseg.training.log import last_step, read_log


def test_records_are_read_and_other_lines_skipped(tmp_path):
    log = tmp_path / "log.jsonl"
    assert read_log(log) == []
    assert last_step(tmp_path) == 0
    log.write_text('{"step": 1}\n{"step": 2}\n')
    assert len(read_log(log)) == 2
    log.write_bytes(b'{"step": 1}\n[2]\n{"step": "x"}\n{"step": Infinity}\n\xff\n' + b"[" * 100_000 + b'\n{"step": 3')
    assert read_log(log) == [{"step": 1}]
    assert last_step(tmp_path) == 1
