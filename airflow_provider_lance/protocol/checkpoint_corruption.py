"""Which corrupt files of a checkpoint can be set aside safely.

The proof rests on the base: the newest epoch that is in the dataset or in Spark's commit log. Spark
writes `commits/N` after the sink's commit, so its name alone proves that epoch N is done. What is
planned after the base exists only in the checkpoint. When it is set aside, Spark plans it again
from where the base ends, and no row is lost or duplicated. The end of the base must be known, so
its own files cannot be set aside.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_lance.exceptions import CheckpointCorruptError
from airflow_provider_lance.protocol.checkpoint import (
    VOID_OFFSET,
    Checkpoint,
    OffsetLog,
    epoch_of,
)
from airflow_provider_lance.protocol.checkpoint_files import (
    CheckpointReader,
    CorruptFile,
    find_corrupt,
    log_offset,
)
from airflow_provider_lance.protocol.codec import query_ids
from airflow_provider_lance.protocol.commands import command_line
from airflow_provider_lance.protocol.files import Files
from airflow_provider_lance.protocol.model import NO_EPOCH
from airflow_provider_lance.protocol.offset_notes import COMPACT
from airflow_provider_lance.protocol.port import DatasetPort

__all__ = ["WAYS_OUT", "Corruption", "assess", "corrupt_error", "refuse_corrupt"]


@dataclass(frozen=True, slots=True)
class Corruption:
    """The corrupt files of a checkpoint, and what is proven about them.

    ``set_aside`` are the paths that Spark can do without, in the order in which they are moved:
    until the last one is moved, Spark still fails instead of starting from a partial checkpoint. It
    is empty if nothing is proven. ``reason`` says why in either case.
    """

    files: tuple[CorruptFile, ...]
    set_aside: tuple[str, ...]
    reason: str


def assess(files: Files, checkpoint: Checkpoint, watermark: int) -> Corruption | None:
    """Check every file that Spark needs for a start; ``None`` if none is corrupt.

    :param watermark: the newest epoch in the dataset, exact.
    :raises StorageUnavailableError: the store did not answer or refused.
    """
    found = CheckpointReader(files, verify=True)
    planned, commits = _numbers(files, "offsets"), _numbers(files, "commits")
    done = [epoch for epoch in commits if epoch <= checkpoint.planned]
    base = min(max([watermark, *done[-1:]]), checkpoint.planned)
    logs = {epoch: found.offsets(epoch) for epoch in {*planned[-2:], base} if epoch > NO_EPOCH}
    for epoch in {*done[-1:], *commits[len(done) :]}:
        found.commit(epoch)
    sources = [
        _SourceLog(files, name, found, _end_in(name, logs, base))
        for name in files.names("sources")
        if not name.startswith(".")
    ]
    if not found.corrupt:
        return None
    try:
        moves = _moves(found, sources, planned, done, base)
    except _NotProvenError as error:
        return Corruption(tuple(found.corrupt.values()), (), str(error))
    return Corruption(tuple(found.corrupt.values()), tuple(moves), _why_safe(base, moves))


def refuse_corrupt(
    files: Files, checkpoint: Checkpoint, port: DatasetPort, query_id: str, watermark: int
) -> None:
    """Raise if Spark could not start from a checkpoint; call it before Spark tries.

    :param watermark: the newest epoch in the dataset, exact.
    :raises CheckpointCorruptError: the message names the file and what is safe to do.
    :raises StorageUnavailableError: the store did not answer or refused.
    """
    if not find_corrupt(files, checkpoint):
        return
    if corruption := assess(files, checkpoint, watermark):
        known = query_id in query_ids(port.config)
        raise corrupt_error(corruption, checkpoint, port.uri, query_id, known=known)


def corrupt_error(
    corruption: Corruption,
    checkpoint: Checkpoint,
    uri: str,
    query_id: str,
    *,
    known: bool,
    connection_arguments: str = "",
) -> CheckpointCorruptError:
    """Return the error for a corrupt checkpoint.

    :param known: whether the dataset has a trace of the query.
    :param connection_arguments: what a command needs to reach the store.
    """
    if not known:
        advice = (
            f"{uri} has no trace of query {query_id!r}, so nothing was committed from it: start "
            "with a new checkpointLocation"
        )
    elif corruption.set_aside:
        typed = command_line(
            "resolve", "files", uri, query_id, "--yes", connection_arguments=connection_arguments
        )
        advice = (
            f"It is safe to set {', '.join(corruption.set_aside)} aside, since "
            f"{corruption.reason}. Type {typed}"
        )
    else:
        advice = f"It cannot be set aside: {corruption.reason}. {WAYS_OUT}"
    return CheckpointCorruptError(
        f"Spark cannot start from the checkpoint at {checkpoint.location}, corrupt: "
        f"{', '.join(map(str, corruption.files))}. {advice}"
    )


WAYS_OUT = (
    "Restore the file from a copy of the checkpoint; or give the checkpoint up and start from a "
    "new checkpointLocation once with onCheckpointChange=newGeneration: the source is then read as "
    "its options say, and rows read before are appended again"
)
"""The user's options where nothing is proven."""


class _NotProvenError(Exception):
    """The reason why the files cannot be set aside."""


class _SourceLog:
    """The entries of one file source's log; every file of the source is named in one of them.

    From time to time Spark writes one entry that contains all earlier ones, ``N.compact``. Other
    sources keep files in their own format: of those, only an empty file is known to be corrupt.
    """

    def __init__(self, files: Files, source: str, found: CheckpointReader, end: int | None) -> None:
        """Read the entries, starting at the newest compact one.

        :param end: the entry that the base ends with; ``None`` if this is not a file source's log.
        """
        names = files.names(f"sources/{source}")
        numbers = {epoch_of(name.removesuffix(COMPACT)): name for name in names}
        self.source, self.end = source, end
        self.names = {number: name for number, name in numbers.items() if number is not None}
        self.corrupt: list[int] = []
        for number in range(max(self.names, default=-1), -1, -1):
            path = self.path(number)
            whole = found.entry(path) if end is not None else found.content(path) is not None
            if path in found.corrupt:
                self.corrupt.append(number)
            elif not whole and end is not None:
                found.missing(path)
                self.corrupt.append(number)
            elif path.endswith(COMPACT):
                return

    def path(self, number: int) -> str:
        return f"sources/{self.source}/{self.names.get(number, number)}"

    def moves(self, base: int) -> list[str]:
        """Return the entries to move: from the lowest corrupt one on, intact ones first.

        :raises _NotProvenError: one of them belongs to an epoch that is done.
        """
        if not self.corrupt:
            return []
        lowest = min(self.corrupt)
        if self.end is None:
            raise _NotProvenError(
                f"{self.path(lowest)} records where its source began, or other state that only the "
                "source can read"
            )
        if lowest <= self.end:
            raise _NotProvenError(
                f"epoch {base} is done, and only {self.path(lowest)} says which files were read "
                "for it or before"
            )
        going = sorted((number for number in self.names if number >= lowest), reverse=True)
        going.sort(key=lambda number: number in self.corrupt)
        return [self.path(number) for number in going]


def _moves(
    found: CheckpointReader,
    sources: list[_SourceLog],
    planned: list[int],
    done: list[int],
    base: int,
) -> list[str]:
    """Return the paths that Spark can do without.

    :raises _NotProvenError: a file that Spark needs is corrupt.
    """
    entries = [path for log in sources for path in log.moves(base)]
    later = [epoch for epoch in planned if epoch > base]
    torn = [epoch for epoch in later if f"offsets/{epoch}" in found.corrupt]
    # Entries are moved with the epochs that they were planned with.
    first = base + 1 if entries else min(torn, default=max(planned, default=0) + 1)
    offsets = [epoch for epoch in later if epoch >= first]
    newest = max((epoch for epoch in planned if epoch < first), default=NO_EPOCH)
    for epoch in (newest, newest - 1):
        found.offsets(epoch)
        if f"offsets/{epoch}" in found.corrupt:
            raise _NotProvenError(
                f"only offsets/{epoch} says where epoch {newest} "
                f"{'ends' if epoch == newest else 'begins'}, and the rows up to there are committed"
            )
    moves = [f"offsets/{epoch}" for epoch in reversed(offsets)]
    for path in found.corrupt:
        folder, _, name = path.partition("/")
        if folder != "commits":
            continue
        before = found.content(f"commits/{int(name) - 1}") or b"v1"
        if int(name) in done and int(name) < newest and not before.startswith(b"v1"):
            raise _NotProvenError(
                f"epoch {newest} is planned, and may need the versions of its state from {path}"
            )
        moves.append(path)
    return moves + entries


def _end_in(source: str, logs: dict[int, OffsetLog | None], base: int) -> int | None:
    """Return the entry of a file source's log that an epoch ends with, -1 for none.

    ``None`` if the source is not a file source, or if the entry is not known.
    """
    known = {epoch: log.sources.get(source, VOID_OFFSET) for epoch, log in logs.items() if log}
    if all(log_offset(offset) is None for offset in known.values()):
        return None
    if base == NO_EPOCH or known.get(base) == VOID_OFFSET:
        return NO_EPOCH
    return log_offset(known.get(base, ""))


def _why_safe(base: int, moves: list[str]) -> str:
    done = f"epoch {base} is the newest that is done" if base > NO_EPOCH else "no epoch is done yet"
    if all(path.startswith("commits/") for path in moves):
        return f"{done}: Spark sends the newest epoch again, and the sink skips it if it has it"
    again = (
        f"{done}: what was planned after it is in no version of the dataset and not in Spark's "
        "commit log, and is planned again"
    )
    if base > NO_EPOCH:
        return again
    return f"{again}, from where the source's options say that it begins"


def _numbers(files: Files, folder: str) -> list[int]:
    epochs = map(epoch_of, files.names(folder))
    return sorted(epoch for epoch in epochs if epoch is not None)
