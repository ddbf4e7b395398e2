"""Events survive a crash of their writer."""

from stochseg.studio.store import EVENTS, Store, read_events


def test_state_is_read_back_from_events(tmp_path):
    store = Store(tmp_path)
    job = store.create_job({"input": "a", "keep": False})
    store.append(job, "progress", {"done": 0.5})
    store.append(job, "state", {"state": "running"})
    (found,) = Store(tmp_path).load_jobs()
    assert (found.id, found.state, found.events, found.request["input"]) == (job.id, "running", 3, "a")


def test_event_that_was_cut_short_is_dropped(tmp_path):
    store = Store(tmp_path)
    job = store.create_job({"input": "a"})
    with (job.folder / EVENTS).open("ab") as log:
        log.write(b'{"id": 2, "type": "sta')
    assert [event["id"] for event in read_events(job.folder, 0)] == [1]
    (found,) = store.load_jobs()
    store.append(found, "state", {"state": "done"})
    assert [event["id"] for event in read_events(job.folder, 0)] == [1, 2]
    assert store.load_jobs()[0].state == "done"


def test_job_that_was_being_created_is_removed(tmp_path):
    store = Store(tmp_path)
    (store.jobs / "0123456789abcdef").mkdir()
    (store.jobs / "other").mkdir()
    assert store.load_jobs() == []
    assert not list(store.jobs.iterdir())
