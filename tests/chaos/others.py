"""What others do to a dataset or a checkpoint who know nothing of streams."""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from airflow_provider_lance.exceptions import LanceStreamError
from airflow_provider_lance.protocol.codec import decode_stamp
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.protocol.port import Configure
from tests.chaos.scene import QUERY, Scene
from tests.chaos.store import Place

STRANGERS = 5
"""Rows of a dataset that somebody made in the place of the stream's."""


def dataset(place: Place, version: int | None = None) -> lance.LanceDataset:
    """Open a dataset as anybody does."""
    return lance.dataset(place.uri, version=version, storage_options=place.options or None)


def commit(place: Place, commits: int) -> None:
    """Commit so many times; nothing of it has to do with the stream."""
    port = place.open()
    for number in range(commits):
        port = port.commit(Configure({"somebody.else": str(number)}))


def clean_everything(place: Place) -> int:
    """Remove all versions but the newest; return how many that were."""
    stats = dataset(place).cleanup_old_versions(older_than=timedelta(0), retain_versions=1)
    return int(stats.old_versions)


@contextmanager
def cleaning(place: Place) -> Iterator[Counter[str]]:
    """Remove everything old, again and again, and commit now and then, while the block runs.

    Yields how often each thing happened.
    """
    over, done = threading.Event(), Counter[str]()

    def run() -> None:
        while not over.wait(0.2):
            done["rounds"] += 1
            # There may be no dataset yet, and others commit at the same moment.
            with suppress(OSError, ValueError, LanceStreamError):
                done["versions"] += clean_everything(place)
                if done["rounds"] % 8 == 0:
                    commit(place, 1)

    thread = threading.Thread(target=run, name="foreign-cleanup", daemon=True)
    thread.start()
    try:
        yield done
    finally:
        over.set()
        thread.join()


@dataclass(frozen=True, slots=True)
class Restored:
    """A restore: the version that was the newest, the one brought back, the one it made."""

    newest: int
    target: int
    made: int


def versions(place: Place) -> set[int]:
    """Return the numbers of all versions there are."""
    return {int(each["version"]) for each in place.open_unharmed().dataset.versions()}


def stamps(place: Place) -> dict[int, int]:
    """Return the stream's epochs by the version that carries each, of all versions there are."""
    port, found = place.open_unharmed(), {}
    for version in sorted(versions(place)):
        if stamp := decode_stamp(port.properties(version) or {}, QUERY, version):
            found[version] = stamp.epoch_id
    return found


def restore(place: Place, epochs: int) -> Restored | None:
    """Bring back the version before the last so many epochs; ``None`` if it is not there."""
    carrying = sorted(stamps(place))
    if len(carrying) < epochs or carrying[-epochs] - 1 not in versions(place):
        return None
    target = carrying[-epochs] - 1
    dataset(place, target).restore()
    made = int(dataset(place).version)
    return Restored(made - 1, target, made)


def bring_back(place: Place, version: int) -> None:
    """Undo a restore."""
    dataset(place, version).restore()


def recreate(place: Place) -> None:
    """Drop the dataset and make another of the same schema at the same URI."""
    schema = dataset(place).schema
    if place.server is None:
        shutil.rmtree(place.uri)
    else:
        store = open_files(place.uri, place.server.options())
        store._fs.delete_dir_contents(store._root)
    columns = [pa.array([_strange(field.type)] * STRANGERS, field.type) for field in schema]
    table = pa.Table.from_arrays(columns, schema=schema)
    lance.write_dataset(table, place.uri, mode="create", storage_options=place.options or None)


def _strange(kind: pa.DataType) -> Any:
    return "somebody" if pa.types.is_string(kind) else -1


def strangers(rows: list[tuple[Any, ...]]) -> int:
    """Count the rows of a dataset that was made in the place of the stream's."""
    return sum(set(row) <= {"somebody", -1} for row in rows)


COMPACTED_EVERY = 10
"""Spark merges so many entries of a file source's log into one, by default."""


def replace_offsets(scene: Scene, epoch: int) -> Callable[[], None]:
    """Let Spark's plan for an epoch end one file later; return what puts it right again.

    A driver that was stopped between its look and its rename, and woken after its successor had
    planned the same epoch, leaves such a file. In the source's log the file has an entry.
    """
    entry = scene.checkpoint / "offsets" / str(epoch)
    checksum = entry.with_name(f".{epoch}.crc")
    before = [(path, path.read_bytes()) for path in (entry, checksum) if path.exists()]
    lines = entry.read_text().splitlines()
    end = int(json.loads(lines[2])["logOffset"]) + 1
    lines[2] = json.dumps({"logOffset": end})
    checksum.unlink(missing_ok=True)
    entry.write_text("\n".join(lines))
    _log_file(scene.checkpoint / "sources" / "0", scene.source.folder, end)

    def put_back() -> None:
        for path, content in before:
            path.write_bytes(content)

    return put_back


def _log_file(log: Path, source: Path, number: int) -> None:
    """Note the file of this number in a file source's log, as Spark does."""
    file = source / f"{number:06}.parquet"
    noted = {"path": file.as_uri(), "timestamp": int(file.stat().st_mtime * 1000)}
    lines, name = [json.dumps(noted | {"batchId": number})], str(number)
    if (number + 1) % COMPACTED_EVERY == 0:
        entries = (path for path in log.iterdir() if path.name[0].isdigit())
        earlier = {line for path in entries for line in path.read_text().splitlines()[1:]}
        lines = sorted(earlier, key=lambda line: int(json.loads(line)["batchId"])) + lines
        name += ".compact"
    (log / name).write_text("\n".join(["v1", *lines]))
