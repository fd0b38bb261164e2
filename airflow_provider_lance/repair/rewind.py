"""The repair that takes table and checkpoint back to the end of one epoch.

Spark then reads what came after it again, from the source. The table has exactly the epochs up to
there, and Spark's log as well, so each row is there once, wherever the two disagreed before.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Unpack

from airflow_provider_lance.diagnostics.side_tables import collect_sides
from airflow_provider_lance.exceptions import PreconditionError
from airflow_provider_lance.protocol.checkpoint import Checkpoint, epoch_of
from airflow_provider_lance.protocol.codec import decode_query, decode_stamp
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.files import ArrowFiles, open_files
from airflow_provider_lance.protocol.model import NO_EPOCH, Watermark
from airflow_provider_lance.protocol.proof import lost_epochs
from airflow_provider_lance.protocol.watermark import exact_watermark, versions_of
from airflow_provider_lance.repair.force_release import force_release
from airflow_provider_lance.repair.preconditions import Preconditions, RepairOptions
from airflow_provider_lance.repair.restores import own_checkpoint, restore_version
from airflow_provider_lance.repair.result import Action, RepairResult, Write
from airflow_provider_lance.repair.set_aside import move_all
from airflow_provider_lance.supervision.driver_reports import is_launch_id, report_location

__all__ = ["rewind", "set_reports_aside", "version_before"]


def rewind(
    port: LanceDatasetPort,
    query_id: str,
    to_epoch: int | None,
    *,
    checkpoint_location: str | None = None,
    **options: Unpack[RepairOptions],
) -> RepairResult:
    """Take a query's table and checkpoint back to the end of an epoch.

    The table's older version becomes the newest again, if it has later epochs. Then the later files
    of `commits` and `offsets` are moved into `set-aside`, newest first: until the last one is
    moved, a start refuses, and the same call continues. At last, the query is claimed and released.

    :param to_epoch: the last epoch to keep, -1 to keep none; ``None`` for the newest epoch of the
        newest version whose data files exist.
    :raises PreconditionError: it is not proven that each row is there once afterwards; as
        :class:`DriverAliveError` a driver is alive, or its state is unknown.
    :raises CheckpointMismatchError: the recorded checkpoint is not at the location.
    :raises FencedError: another driver claimed in the middle; its claim stands.
    :raises TransientError: a store refused; the same call continues.
    """
    preconditions = Preconditions(port, query_id, options)
    port, owner = port.latest(), preconditions.owner
    location = checkpoint_location or owner.driver.checkpoint_location
    named = ["--intact"] if to_epoch is None else ["--to-epoch", str(to_epoch)]
    preconditions.refuse_live_driver(location, verb=["resolve", "rewind", *named])
    files = open_files(location, options.get("storage_options"))
    checkpoint = own_checkpoint(preconditions, location)
    target, epoch = _version(port, preconditions, checkpoint, to_epoch)
    for side in collect_sides(port, query_id, options.get("storage_options")):
        if side.watermark > epoch or side.lost or side.problem:
            raise PreconditionError(
                f"side table {side.name} of query {query_id!r}, at {side.uri}, has epochs up to "
                f"{side.watermark}: Spark may plan the epochs after {epoch} with other rows, and "
                "the side table would not take them. Bring the rows back in another way"
            )
    moves = _moves(files, checkpoint, epoch)
    if target is None and not moves:
        raise PreconditionError(
            f"{port.uri} and the checkpoint at {location} both end at epoch {epoch} of query "
            f"{query_id!r} or before: there is nothing to take back"
        )
    aside = f"set-aside/{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    what = f"taken back to the end of epoch {epoch}" if epoch > NO_EPOCH else "taken back to empty"
    result = RepairResult(
        action=Action.REWIND,
        uri=port.uri,
        query_id=query_id,
        sentence=f"query {query_id!r} {what} by {preconditions.by}: the next start reads what came "
        "after it from the source again",
        changed=not preconditions.dry_run,
        version=port.version,
        watermark=epoch,
        token=owner.token,
        generation=preconditions.state.generation,
        dry_run=preconditions.dry_run,
        moves={path: f"{aside}/{path}" for path in moves},
    )
    back = replace(checkpoint, planned=epoch, committed=epoch, planned_at=None, ends={})
    driver = preconditions.driver(what)
    folded = Watermark(epoch, port.version, None)
    if preconditions.dry_run:
        _, _, plan = force_release(preconditions, driver, back, folded)
        if target is not None:
            first = Write(port.version + 1, f"restore version {target}", {})
            plan = [first, *(replace(each, version=each.version + 1) for each in plan)]
        return replace(result, writes=tuple(plan))
    if target is not None:
        port = restore_version(port, target)
    move_all(files, result.moves)
    set_reports_aside(open_files(report_location(location), options.get("storage_options")))
    if not decode_query(port.config, query_id, port.version).known:
        return replace(result, version=port.version)  # it is a version from before the query
    preconditions = Preconditions(port, query_id, options)
    handle, state, _ = force_release(preconditions, driver, back, folded)
    token = state.owner.token if state.owner else None
    return replace(result, version=handle.version, watermark=state.watermark, token=token)


def _version(
    port: LanceDatasetPort,
    preconditions: Preconditions,
    checkpoint: Checkpoint,
    to_epoch: int | None,
) -> tuple[int | None, int]:
    """Return the version to restore, ``None`` if none need be, and the epoch at which it ends.

    :raises PreconditionError: epochs up to there are missing, or rows of others would be lost.
    """
    query, state = preconditions.query_id, preconditions.state
    if to_epoch is None:
        intact = port.newest_intact()
        older = port.at(intact) if intact is not None else None
        if older is None:
            raise PreconditionError(f"no version of {port.uri} has all its data files")
        watermark = exact_watermark(older, query)
        if watermark.missing:
            raise preconditions.gap_error(watermark)
        return (None if intact == port.version else intact), watermark.epoch
    watermark = exact_watermark(port, query, spark_done=checkpoint.committed)
    if watermark.missing:
        raise preconditions.gap_error(watermark)
    lost = lost_epochs(watermark, state, checkpoint.committed)
    least = min(watermark.epoch, lost[0] - 1 if lost else watermark.epoch)
    if to_epoch > max(least, NO_EPOCH) and to_epoch != watermark.epoch:
        raise PreconditionError(
            f"{port.uri} does not have all epochs of query {query!r} up to {to_epoch}: it has "
            f"those up to {least}"
        )
    if watermark.epoch <= to_epoch:
        # The table stays as it is, so it must be seen to have none of the later epochs.
        versions = range(1, port.version + 1)
        if not lost and any(port.properties(version) is None for version in versions):
            raise PreconditionError(
                f"versions of {port.uri} were cleaned up, so it cannot be seen whether rows of "
                f"epochs after {to_epoch} of query {query!r} are in the table: reading them again "
                "could double them"
            )
        return None, to_epoch
    return version_before(port, query, state.generation, to_epoch), to_epoch


def version_before(port: LanceDatasetPort, query: str, generation: int, to_epoch: int) -> int:
    """Return the version from before the first epoch after one.

    :raises PreconditionError: it was cleaned up, or another writer changed rows since.
    """
    seen, above, others = list[int](), list[int](), list[int]()
    for version, properties in versions_of(port, 0):
        if properties is None:
            break
        stamp = decode_stamp(properties, query, version)
        own = stamp is not None and stamp.generation == generation
        if stamp and own and stamp.epoch_id <= to_epoch:
            seen.append(version)
            break
        seen.append(version)
        if own:
            above.append(version)
        elif port.restored(version) is None and port.changed_rows(version):
            others.append(version)
    if not above:
        raise PreconditionError(f"no epoch of query {query!r} after {to_epoch} is in {port.uri}")
    first = above[-1]
    place = seen.index(first)
    if later := [version for version in others if version in seen[:place]]:
        raise PreconditionError(
            f"version {later[0]} of {port.uri} changed rows and is not of query {query!r}: an "
            "older version would be without them"
        )
    if place + 1 == len(seen):
        raise PreconditionError(f"the version before {first} of {port.uri} was cleaned up")
    return seen[place + 1]


def _moves(files: ArrowFiles, checkpoint: Checkpoint, epoch: int) -> list[str]:
    """Return the files of later epochs in Spark's logs, newest first.

    :raises PreconditionError: Spark's log no longer has the epoch itself.
    """
    found = [
        (number, f"{log}/{name}")
        for log in ("commits", "offsets")
        for name in files.names(log)
        if (number := epoch_of(name)) is not None
    ]
    there = [path for _, path in found]
    if epoch > NO_EPOCH and not {f"commits/{epoch}", f"offsets/{epoch}"} <= {*there}:
        raise PreconditionError(
            f"the checkpoint at {checkpoint.location} no longer has epoch {epoch} in its logs: "
            "Spark keeps the newest 100 epochs"
        )
    later = [each for each in found if each[0] > epoch]
    return [path for _, path in sorted(later, key=lambda each: (-each[0], each[1]))]


def set_reports_aside(reports: ArrowFiles) -> None:
    """Move the reports of all launches: they tell of epochs that Spark plans again."""
    for launch in filter(is_launch_id, reports.names("")):
        for name in reports.names(launch):
            reports.move(f"{launch}/{name}", f"set-aside/{launch}/{name}")
