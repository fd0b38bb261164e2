"""The text of every finding: the cases of each code, what was seen, and how it came about.

The runbook's page of a code says more: what is lost, and what to type.
"""

from __future__ import annotations

from enum import Enum

from airflow_provider_lance.diagnostics.findings import Code, Severity

__all__ = ["Case"]

_NEW_GENERATION = (
    "or start once with onCheckpointChange=newGeneration, which begins a new numbering of epochs "
    "and reads the source from the checkpoint's position"
)
_NEW_START = "start with a new checkpointLocation and query id, which reads the source again."
_REFUSES = "so a driver refuses to start. "
_OWNER = "The driver that owns query {query}, {driver}, "
_GONE = _OWNER + "{how}; the watermark is {watermark} and no driver is running."
_KILLED = (
    "It was killed, its host went down, or it gave up on an epoch that hung. No row is lost."
    "{unsure} To continue, {again}. Release the query only if the stream is not to run again."
)
_FAILED = "Query {query} failed with {error}: {message}"
_HANGS = (
    "The source, Spark's tasks or the store hang, or the epoch is too large. See the driver's log "
    "and the Spark UI. Ask the driver to stop; if it does not stop within its grace, end its "
    "process on {driver}. Nothing is lost: Spark plans the epoch again."
)
_IN_FLIGHT = (
    "Epoch {epoch} of query {query} is planned{since} and not committed; the watermark is "
    "{watermark}."
)
_BEHIND = (
    "The config's watermark of query {query} is {folded}, and history shows epoch {watermark} in "
    "version {epoch_version}: {epochs} since the last fold."
)
_RESTORED = (
    "Version {by} of {uri} restored version {restored}: {lost} of query {query} {be} no longer in "
    "the table."
)
_NOT_READ_AGAIN = "Spark has logged them as done and does not read them again. "
_ACCEPT = "start the stream once with onRestore=accept:{accept}."
_GAP = "{missing} of the versions since the last fold of query {query}{span} were cleaned up"
_CLEANED = "A foreign cleanup removed versions before their epochs were folded into the config. "
_UNREADABLE = "The checkpoint {location} cannot be read from here: {reason}."
_CORRUPT = "Spark cannot start query {query} from the checkpoint at {location}: {files}."
_CHANGED = (
    "The checkpoint at {location} says in {files} that epoch {epoch} of query {query} ends "
    "elsewhere than its commit in {uri} says."
)
_OVERWRITTEN = (
    "Another driver wrote the file when it woke up, or it was edited or restored. Spark would skip "
    f"rows that were never read, or read rows again; {_REFUSES}"
)


class Case(Enum):
    """What a rule may find. The rule fills in the values that are named in braces.

    ``severity`` is given if the case is better or worse than its code.
    """

    def __init__(
        self, code: Code, summary: str, cause: str = "", severity: Severity | None = None
    ) -> None:
        self.code, self.summary, self.cause, self.severity = code, summary, cause, severity

    HEALTHY = Code.HEALTHY, "Query {query} is healthy: {state}."

    EPOCH_STALLED = (
        Code.STALLED,
        "Epoch {epoch} of query {query} is planned and not committed since {since} ({waited}).",
        _HANGS,
    )
    DRIVER_STALLED = Code.STALLED, "The driver of query {query} stalls: {reason}.", _HANGS
    DRIVER_GONE = Code.DRIVER_GONE, _GONE, _KILLED
    DRIVER_REPLACED = (
        Code.DRIVER_GONE,
        _OWNER + "{how}; {successor} is running and takes the query over.",
        "A new driver claims the query when it starts or with its first rows; it has not yet.",
        Severity.INFO,
    )
    NEWEST_DRIVER_LOST = (
        Code.DRIVER_GONE,
        "The newest driver of query {query}, {driver}, is {state}: {reason}.",
        "It does not own the query: nothing is lost, and there is nothing to release. To continue, "
        "{again}.",
    )
    TWO_DRIVERS = (
        Code.TWO_DRIVERS,
        "{count} drivers of query {query} are running: {drivers}.",
        "A task was started again before its driver ended, or two deployments use one query id. "
        "Only the owner commits, so no row is duplicated. Keep {keep}. The other ({others}) ends "
        "as fenced at its next epoch, or at once by the command, typed on its own host.",
    )
    FAILED_FOR_GOOD = (
        Code.QUERY_FAILED,
        _FAILED,
        "Terminal: it fails again until you do what the message says; then {again}.{trace}",
    )
    FAILED = (
        Code.QUERY_FAILED,
        _FAILED,
        "Transient: a new start may succeed; {again}, or wait for the next retry.",
    )
    STOP_PENDING = (
        Code.STOP_PENDING,
        "Query {query} was asked to stop{by}{since} and has not stopped yet.",
        "A busy driver reads the request at its next commit, an idle one within seconds. A driver "
        "that hangs never reads it: end its process on {where}; nothing is lost.",
    )
    DRIVER_UNSEEN = (
        Code.DRIVER_UNSEEN,
        _OWNER + "cannot be seen from here; {last}.",
        "Its process is on another host, and it writes no heartbeats or they cannot be read here. "
        "Run the same command on {host}.",
    )

    IN_FLIGHT = Code.EPOCH_IN_FLIGHT, _IN_FLIGHT, "The driver is writing it."
    IN_FLIGHT_WITHOUT_DRIVER = (
        Code.EPOCH_IN_FLIGHT,
        _IN_FLIGHT,
        "No driver is running: the next start plans the same epoch again, with the same rows.",
    )
    IN_FLIGHT_UNSEEN = (
        Code.EPOCH_IN_FLIGHT,
        _IN_FLIGHT,
        "Whether a driver is writing it cannot be seen from here.",
    )
    EPOCH_TO_SKIP = (
        Code.EPOCH_TO_SKIP,
        "Epoch {epoch} of query {query} is committed{where} and absent from Spark's commit log, "
        "which ends at {committed}.",
        "The driver ended between the commit and Spark's log entry. The next start skips it.",
    )
    BEHIND_AS_USUAL = (
        Code.WATERMARK_BEHIND,
        _BEHIND,
        "A driver folds every few epochs and when it releases the query; nothing to do.",
    )
    BEHIND_UNDER_DRIVER = (
        Code.WATERMARK_BEHIND,
        _BEHIND,
        "The driver has not folded for a long time; its log says why.",
        Severity.WARNING,
    )
    BEHIND_WITHOUT_DRIVER = (
        Code.WATERMARK_BEHIND,
        _BEHIND,
        "{ended}. Nothing is lost while the versions exist, but a foreign cleanup may remove the "
        "evidence. The next start folds it, and so does a release.",
        Severity.WARNING,
    )
    COMMITTED_AFTER_RELEASE = (
        Code.WATERMARK_BEHIND,
        "The owner of query {query} is recorded as released with watermark {watermark}, but "
        "history shows epoch {epoch} after the release.",
        "The owner record was changed by hand or by another tool while a driver was running. A new "
        "driver might append those epochs again. Do not start the stream; compare the epochs "
        "first.",
        Severity.CRITICAL,
    )
    NO_TRACE = (
        Code.COMMIT_LOG_AHEAD,
        "The checkpoint at {location} has committed epochs up to {committed}, but {uri} at version "
        "{version} has no trace of query {query}.",
        "The dataset was dropped, recreated or restored from before the query began, or this is "
        "the wrong URI or query id.{wrote} The rows of those epochs are not here. Correct the URI, "
        "or start with a new checkpointLocation, which reads the source again.",
    )
    DATA_FILES_MISSING = (
        Code.COMMIT_LOG_AHEAD,
        "Version {version} of {uri} references data files that do not exist.",
        "The dataset was dropped and recreated under a driver, or its files were deleted. Rows of "
        "query {query} are gone, and rows of other queries may be hidden. Find the versions that "
        "the query committed, restore the version before them with Lance's restore(), and "
        + _NEW_START,
    )
    RESTORED = (
        Code.COMMIT_LOG_AHEAD,
        _RESTORED,
        f"{_NOT_READ_AGAIN}With the stream stopped, restore version {{before}} to bring them back. "
        f"Or, to continue without them, {_ACCEPT}",
    )
    RESTORED_AND_CLEANED = (
        Code.COMMIT_LOG_AHEAD,
        _RESTORED,
        f"{_NOT_READ_AGAIN}The versions that held them were cleaned up. To continue without them, "
        + _ACCEPT,
    )
    ROLLED_BACK = (
        Code.COMMIT_LOG_AHEAD,
        "Launch {launch} committed epoch {epoch} of query {query} by version {said_version}, but "
        "in {uri} at version {version} the newest epoch up to there is {newest}.",
        "The dataset was rolled back, restored from a copy or recreated. Spark has logged those "
        "epochs as done and does not read them again: rows after epoch {found} are missing. Bring "
        f"the newer dataset back; or {_NEW_START}",
    )
    GAP_WITHOUT_CHECKPOINT = (
        Code.HISTORY_GAP,
        _GAP + ", and which epochs were in them is unknown without the checkpoint.",
        _CLEANED + "Run the same check where the checkpoint can be read.",
    )
    GAP_WITHOUT_DOUBT = (
        Code.HISTORY_GAP,
        _GAP + ", but every epoch up to {proven} is proven: none is in doubt.",
        _CLEANED + "The next start folds what is proven; nothing to do.",
        Severity.INFO,
    )
    GAP_UNDER_DRIVER = (
        Code.HISTORY_GAP,
        _GAP + " under a running driver. If it died now, it would be unknown whether epoch {doubt} "
        "was committed.",
        _CLEANED + "The driver knows its own epochs and continues; its next fold closes the gap. "
        "Stop the cleanup.",
        Severity.WARNING,
    )
    GAP_IN_DOUBT = (
        Code.HISTORY_GAP,
        _GAP + ", and epoch {doubt} was planned: it is unknown whether the rows of epochs {first} "
        "to {doubt} are in the dataset.",
        _CLEANED + "Or an older version was restored before that. Check whether the rows of epoch "
        "{doubt} are in the dataset, and add to the command --committed if they are, --missing if "
        "they are not.",
    )
    WATERMARK_JUMPED = (
        Code.WATERMARK_JUMPED,
        "The config says that epoch {epoch} of query {query} was committed by version "
        "{said_version}, but the newest epoch in the versions up to there is {newest}.",
        "The watermark was written by hand or by another tool. Epochs {first} to {epoch} would be "
        "skipped and their rows lost. With the stream stopped, set the config key back to {found}, "
        "or find out what wrote it.",
    )

    CHECKPOINT_MISSING = (
        Code.CHECKPOINT_MISSING,
        "Query {query} has watermark {watermark} and belongs to checkpoint {recorded}, but there "
        "is none at {location}{left}.",
        "It was deleted or moved. From an empty checkpoint, every epoch up to the watermark would "
        f"be skipped; {_REFUSES}Restore it from a copy, or name its new location, "
        f"{_NEW_GENERATION}; rows read before are then appended again.",
    )
    CHECKPOINT_FOREIGN = (
        Code.CHECKPOINT_FOREIGN,
        "Query {query} belongs to checkpoint {recorded} at {recorded_location}, but {location} "
        "holds checkpoint {found}.",
        "The checkpoint was deleted and recreated, or two queries were mixed up. Its epochs would "
        f"be taken for others that are committed; {_REFUSES}Restore the recorded one. The command "
        "takes this one instead and begins a new numbering of epochs: what it reads again is "
        "appended again.",
    )
    CHECKPOINT_OLDER = (
        Code.CHECKPOINT_OLDER,
        "Epoch {watermark} of query {query} is in the dataset, but its checkpoint at {location} "
        "ends at epoch {planned}.",
        "An older copy of the checkpoint was restored. Spark would plan epochs {first} to "
        f"{{watermark}} again, with other rows, and the sink would skip them; {_REFUSES}Restore "
        f"the newest copy, {_NEW_GENERATION}.",
    )
    CHECKPOINT_ELSEWHERE = (
        Code.CHECKPOINT_UNREADABLE,
        _UNREADABLE,
        "It is on a store that pyarrow does not serve, or on another host's disk. Dataset and "
        "drivers were checked without it; run the same command where it can be read.",
    )
    CHECKPOINT_WITHOUT_ID = (
        Code.CHECKPOINT_UNREADABLE,
        _UNREADABLE,
        "Its `metadata` is damaged, so Spark cannot start from it either. Restore it.",
        Severity.ERROR,
    )
    CORRUPT_TO_SET_ASIDE = (
        Code.CHECKPOINT_CORRUPT,
        _CORRUPT,
        "The command sets aside what Spark can do without: {reason}. No row is lost or appended "
        "twice.",
    )
    CORRUPT_IN_GAP = (
        Code.CHECKPOINT_CORRUPT,
        _CORRUPT,
        "Versions that would prove which epoch is the newest were cleaned up: answer for the epoch "
        "in doubt first.",
    )
    CORRUPT = (
        Code.CHECKPOINT_CORRUPT,
        _CORRUPT,
        "Nothing proves that Spark can do without it: {reason}. {ways_out}.",
    )
    ENDS_CHANGED = (
        Code.CHECKPOINT_CHANGED,
        _CHANGED,
        _OVERWRITTEN + "The commit has the end offsets: the command writes the file again.",
    )
    ENDS_CHANGED_BY_DIGEST = (
        Code.CHECKPOINT_CHANGED,
        _CHANGED,
        f"{_OVERWRITTEN}The commit has only the digest of the end offsets, which are too long to "
        f"be kept. Restore the file from a copy of the checkpoint, {_NEW_GENERATION}.",
    )

    FOREIGN_CLEANUP = (
        Code.FOREIGN_CLEANUP,
        "Lance's own auto-cleanup is on for {uri}: {settings}.",
        "It runs inside every client's commits and may remove the versions that prove an epoch, so "
        "each stream folds at every epoch, at twice the manifest updates. lancedb sets these keys "
        "on tables that it creates. Remove them and schedule `lance-stream cleanup` or a "
        "LanceOptimizeOperator.",
    )
    SMALL_FRAGMENTS = (
        Code.SMALL_FRAGMENTS,
        "{small:,} of {fragments:,} fragments are small, more than {limit:,}.",
        "Each epoch adds at least one, and every commit and every reader pays for each. Compaction "
        "merges them beside the running stream.",
    )
    MANY_VERSIONS = (
        Code.MANY_VERSIONS,
        "{versions:,} versions, more than {limit:,}; their manifests take {size}.",
        "Each epoch is a version, and there was no cleanup. Listing them becomes slow; a cleanup "
        "folds every query's watermark first.",
    )
    INDEX_BEHIND = (
        Code.INDEX_BEHIND,
        "Of {rows:,} rows, index {behind}; more than {limit:,} is too many.",
        "New fragments are in no index until it is brought up to date: queries scan them, and "
        "upserts by an indexed key become slow.",
    )
    ORPHANED_FILES = (
        Code.ORPHANED_FILES,
        "{files:,} data files with {size} are not referenced by any version.{bound}",
        "A repeated task, or a driver that ended between write and commit, leaves them. They cost "
        "space only; a cleanup removes them once they are seven days old.",
    )
    PROTOCOL_NEWER = (
        Code.PROTOCOL_NEWER,
        "Query {query} cannot be read: {error}",
        "A newer airflow-provider-lance, or another tool, writes this query. This version cannot "
        "check it, and its driver refuses to start.",
    )
    OTHER_TOOL = (
        Code.PROTOCOL_NEWER,
        "Query {query} has watermark {watermark} and no owner record in {uri}: another tool wrote "
        "it.",
        "Another Lance sink uses the same keys. Its watermark proves nothing here, and a driver "
        "refuses to start; give this query a queryId of its own.",
    )
