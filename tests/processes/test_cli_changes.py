"""The commands that change state: nothing without --yes, then what the plan says."""

from __future__ import annotations

import re
import shlex
import subprocess
import threading
from pathlib import Path

import lance
import pytest

from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.model import NO_EPOCH, OwnerState, QueryState
from airflow_provider_lance.protocol.watermark import exact_watermark
from tests.support.cli import QUERY, Ran, Stream, typed
from tests.support.consumers import READER, leave
from tests.support.maintenance import age, files, make, sizes


@pytest.fixture
def wreck(stream: Stream, process: subprocess.Popen[bytes]) -> Stream:
    """A stream whose driver was killed with an epoch planned."""
    stream.plan(4)
    process.kill()
    process.wait()
    return stream


def state(stream: Stream) -> QueryState:
    port = open_dataset(stream.uri)
    return decode_query(port.config, QUERY, port.version)


def lose_versions(stream: Stream) -> None:
    """Clean up as somebody would who knows nothing of streams."""
    dataset = lance.dataset(stream.uri)
    dataset.update_config({"somebody's": "own"})  # the newest version, which cleanup spares
    dataset.cleanup_old_versions(versions=list(range(2, dataset.version)))


def refused_then_done(stream: Stream, *words: str) -> Ran:
    """Type a command without --yes, then what it says is to be typed."""
    before = files(stream.uri)
    ran = typed(*words)
    assert ran.status == 2
    assert "needs --yes" in ran.err
    assert files(stream.uri) == before, "nothing was changed"
    told = ran.out.splitlines()[-1].partition("lance-stream ")[2]
    document = typed(*words, "-o", "json").document
    assert document["done"] is False
    assert document["command"] == f"lance-stream {told}"
    assert document["plan"]
    return typed(*shlex.split(told))


def test_stop_asks_the_driver(stream: Stream) -> None:
    assert refused_then_done(stream, "stop", stream.uri).status == 0
    note = stream.committer.stop_requested(poll=True)
    assert note is not None
    assert "@" in note.by
    assert typed("stop", stream.uri, "--yes", "--by", "Ann").status == 0, "it stands already"


def test_stop_says_who_asks(stream: Stream) -> None:
    assert typed("stop", stream.uri, "--yes", "--by", "Ann").status == 0
    note = stream.committer.stop_requested(poll=True)
    assert note is not None
    assert note.by == "Ann"


def test_stop_waits_until_it_has(stream: Stream) -> None:
    ended = threading.Event()

    def obey() -> None:
        while not stream.committer.stop_requested(poll=True):
            ended.wait(0.02)
        stream.committer.release()

    driver = threading.Thread(target=obey)
    driver.start()
    ran = typed("stop", stream.uri, "--yes", "--wait", "60", "-o", "json")
    driver.join()
    assert (ran.status, ran.document["state"]) == (0, "released")
    assert state(stream).owner.state is OwnerState.RELEASED  # type: ignore[union-attr]


def test_stop_that_is_not_obeyed(stream: Stream) -> None:
    ran = typed("stop", stream.uri, "--yes", "--wait", "0.01")
    assert ran.status == 1
    assert "within 0.01 s" in ran.out


def test_stop_of_a_driver_that_is_gone_names_the_next_command(wreck: Stream) -> None:
    ran = typed("stop", wreck.uri, "--yes", "--wait", "10s")
    assert ran.status == 1
    command = ran.out.strip().removesuffix(".").partition("Next: lance-stream ")[2]
    assert typed(*shlex.split(command)).status == 0
    assert state(wreck).owner.state is OwnerState.RELEASED  # type: ignore[union-attr]


def test_release_of_a_dead_owner(wreck: Stream) -> None:
    ran = refused_then_done(wreck, "release", wreck.uri)
    assert ran.status == 0
    assert "released by" in ran.out
    seen = state(wreck)
    assert seen.owner
    assert (seen.owner.state, seen.watermark) == (OwnerState.RELEASED, 3)
    again = typed("release", wreck.uri, "-o", "json")
    assert (again.status, again.document["done"]) == (0, False), "there is nothing to do"


def test_release_of_a_living_owner_is_refused(stream: Stream) -> None:
    before = files(stream.uri)
    for words in ((), ("--yes",), ("--yes", "--proven-dead")):
        ran = typed("release", stream.uri, *words)
        assert (ran.status, ran.out) == (1, "")
        assert "is alive" in ran.err
    assert files(stream.uri) == before


@pytest.mark.parametrize(("answer", "mark"), [("--committed", 4), ("--missing", 3)])
def test_resolve_gap(wreck: Stream, answer: str, mark: int) -> None:
    lose_versions(wreck)
    assert exact_watermark(open_dataset(wreck.uri), QUERY).missing
    words = ("resolve", "gap", wreck.uri, "--epoch", "4", answer)
    assert refused_then_done(wreck, *words).status == 0
    assert exact_watermark(open_dataset(wreck.uri), QUERY).epoch == mark


def test_an_answer_to_an_earlier_gap_is_refused(wreck: Stream) -> None:
    lose_versions(wreck)
    version = open_dataset(wreck.uri).version
    words = ("resolve", "gap", wreck.uri, "--epoch", "4", "--after-version", "0", "--missing")
    ran = typed(*words, "--yes")
    assert ran.status == 1
    assert "Check again" in ran.err
    assert open_dataset(wreck.uri).version == version


def test_the_command_of_a_plan_keeps_the_version_that_the_answer_is_about(wreck: Stream) -> None:
    lose_versions(wreck)
    folded = state(wreck).folded_version
    words = ("resolve", "gap", wreck.uri, "--epoch", "4", "--after-version", str(folded))
    ran = typed(*words, "--missing")
    assert ran.status == 2
    assert f"--after-version {folded} --missing" in ran.out + ran.err


def test_an_empty_checkpoint_is_refused(wreck: Stream) -> None:
    ran = typed("resolve", "checkpoint", wreck.uri, "--checkpoint", "", "--yes")
    assert ran.status == 2
    assert "--checkpoint" in ran.err


@pytest.mark.parametrize("answers", [(), ("--committed", "--missing")])
def test_resolve_gap_needs_one_answer(wreck: Stream, answers: tuple[str, ...]) -> None:
    ran = typed("resolve", "gap", wreck.uri, "--epoch", "4", *answers, "--yes")
    assert ran.status == 2
    assert "either --committed" in ran.err


def test_resolve_gap_where_there_is_none(wreck: Stream) -> None:
    ran = typed("resolve", "gap", wreck.uri, "--epoch", "4", "--missing", "--yes")
    assert ran.status == 1
    assert "no gap" in ran.err


def test_resolve_files(wreck: Stream) -> None:
    newest = max((wreck.checkpoint / "commits").iterdir(), key=lambda path: int(path.name))
    newest.write_bytes(b"")
    before = sorted(path.name for path in wreck.checkpoint.rglob("*"))
    words = ("resolve", "files", wreck.uri)
    plan = typed(*words)
    assert (plan.status, f"file commits/{newest.name} becomes set-aside/" in plan.out) == (2, True)
    assert sorted(path.name for path in wreck.checkpoint.rglob("*")) == before
    assert refused_then_done(wreck, *words).status == 0
    assert not newest.exists()
    (kept,) = (wreck.checkpoint / "set-aside").glob(f"*/commits/{newest.name}")
    assert kept.read_bytes() == b""
    again = typed(*words, "--yes", "-o", "json")
    assert (again.status, again.document["done"]) == (0, False)
    assert "is whole" in typed(*words).out


def test_resolve_files_beside_a_living_driver_is_refused(stream: Stream) -> None:
    newest = max((stream.checkpoint / "offsets").iterdir(), key=lambda path: int(path.name))
    newest.write_bytes(b"")
    ran = typed("resolve", "files", stream.uri, "--yes", "--proven-dead")
    assert (ran.status, ran.out) == (1, "")
    assert "is alive" in ran.err
    assert newest.exists()


def test_what_an_error_says_to_type_reaches_the_store(wreck: Stream) -> None:
    lose_versions(wreck)
    connection_arguments = "--storage-option timeout=60s"
    ran = typed("release", wreck.uri, *connection_arguments.split(), "--yes")
    assert ran.status == 1
    assert re.search(
        rf"type lance-stream resolve gap \S+ {QUERY} --epoch \d+ --after-version \d+ --yes "
        rf"{connection_arguments} ",
        ran.err,
    )


def test_resolve_checkpoint(wreck: Stream, tmp_path: Path) -> None:
    other = tmp_path / "other checkpoint"
    (other / "commits").mkdir(parents=True)
    (other / "metadata").write_text('{"id": "other"}')
    words = ("resolve", "checkpoint", wreck.uri, "--checkpoint", str(other))
    assert refused_then_done(wreck, *words).status == 0
    seen = state(wreck)
    assert seen.owner
    assert seen.owner.driver.checkpoint_id == "other"
    assert (seen.generation, seen.watermark) == (1, NO_EPOCH)


def test_optimize(tmp_path: Path) -> None:
    uri = make(tmp_path, 30)
    before = files(uri)
    words = ("optimize", uri, "--target-rows", "100")
    assert typed(*words, "--dry-run").status == 0
    ran = typed(*words)
    assert ran.status == 2
    assert f"lance-stream optimize {uri} --target-rows 100 --yes" in ran.out
    assert files(uri) == before
    ran = typed(*words, "--yes", "-o", "json")
    assert ran.status == 0
    assert ran.document["done"]["compact"]["tasks"] == 3
    assert sizes(uri) == [100] * 3
    assert typed("optimize", uri, "--yes").status == 0, "nothing to do is no error"


def test_cleanup(tmp_path: Path) -> None:
    uri = make(tmp_path, 10)
    age(uri, 3 * 3600)
    before = files(uri)
    words = ("cleanup", uri, "--older-than", "2h")
    ran = typed(*words, "--dry-run", "-o", "json")
    assert ran.status == 0
    assert ran.document["done"]["cleanup"]["versions"] == 9
    ran = typed(*words)
    assert ran.status == 2
    assert f"lance-stream cleanup {uri} --older-than 7200 --yes" in ran.out
    assert files(uri) == before
    assert typed(*words, "--yes").status == 0
    assert len(list(Path(uri, "_versions").glob("*.manifest"))) == 1


def test_cleanup_keeps_what_a_consumer_needs_for_the_retention(tmp_path: Path) -> None:
    uri = make(tmp_path, 10)
    leave(uri, 4, ago=3 * 3600)
    words = ("cleanup", uri, "--older-than", "0", "--yes")
    assert typed(*words, "-o", "json").document["done"]["cleanup"]["held"] == {READER: 7}
    ran = typed(*words, "--consumer-retention", "1h")
    assert ran.status == 0
    assert "Warning: Versions are no longer kept for consumer 'hourly'" in ran.out
    assert len(list(Path(uri, "_versions").glob("*.manifest"))) == 1


def test_contradictions(tmp_path: Path) -> None:
    uri = make(tmp_path, 1)
    ran = typed("cleanup", uri, "--yes", "--dry-run")
    assert ran.status == 2
    ran = typed("optimize", uri, "--target-rows", "0", "--dry-run")
    assert ran.status == 2
    assert "target_rows_per_fragment" in ran.err
