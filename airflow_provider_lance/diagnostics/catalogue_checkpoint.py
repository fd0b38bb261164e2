"""The texts of findings about a checkpoint, and about epochs that the dataset lost."""

from __future__ import annotations

from airflow_provider_lance.diagnostics.catalogue import Case
from airflow_provider_lance.diagnostics.findings import Code, Severity

__all__ = ["CheckpointCase", "Say"]


class Say:
    """The texts of steps."""

    BRING_BACK = "If the rows must be back at once, take them from the dataset's own versions:"
    READ_AGAIN = (
        "Or, if the source still has those rows, let Spark read again what came after {epoch}:"
    )
    NEWER_COPY = (
        "If there is a newer copy of {uri}, at version {version} or later, put it back with every "
        "writer stopped."
    )
    NO_NEWER_COPY = (
        "Or, if there is no newer copy and the source still has the rows, let Spark read again "
        "what came after {epoch}:"
    )
    FILES_BACK = (
        "If a copy of the store has the deleted files below {uri}/data, put them back with every "
        "writer stopped."
    )
    INTACT = (
        "Or, if there is no copy and the source still has the rows, take the table back to its "
        "newest version that is whole, and let Spark read again what came after it:"
    )
    MOVE_BACK = (
        "Stop the streams of both checkpoints. Move checkpoint {recorded} back from {found}, where "
        "it is now:"
    )
    SEND_HOME = "Move the checkpoint that is there now to its own place; it is of query {other}:"
    COPY = (
        "If a backup has checkpoint {recorded} with epoch {watermark} or a later one, put it back "
        "at {location}."
    )
    START_OVER = (
        "Or, if there is no backup and the source still has all rows, begin again with an empty "
        "checkpoint: Spark reads the whole source, and no row is in the table twice:"
    )
    NEW_QUERY = (
        "Or, if there is no backup and the source still has all rows, give the stream another "
        "query_id, checkpoint_location and table in the DAG: the versions from before its first "
        "epoch were cleaned up, so this table cannot be taken back."
    )
    ROLL_TABLE = (
        "Or, if there is no backup and the source still has the rows, take the table back to "
        "{epoch} too, and let Spark read again what came after it:"
    )
    RIGHT_TASK = (
        "If the task's uri, query_id or checkpoint_location is wrong, correct it in the DAG."
    )
    ALL_AGAIN = (
        "Or, if the dataset was dropped and the source still has the rows, begin again with an "
        "empty checkpoint: Spark reads the whole source:"
    )
    WITHOUT = "Or, to continue without the rows of epochs 0 to {committed}, which are lost then:"
    BACK_FIRST = "Bring the rows back first that a restored version took out of the table:"
    FILES = "Write or set aside the wrong files, as dataset and logs prove; none is deleted:"
    FILE_BACK = (
        "If a backup of the checkpoint {location} from after its newest epoch exists, put the "
        "files back from it."
    )
    ELSEWHERE = (
        "Go to a host that reads {location}, such as the driver's, and judge the stream there: "
        "only the checkpoint could not be seen from here."
    )
    RIGHT_VALUE = "Put the value back that the versions prove, with the stream stopped:"
    ACCEPT = "Or, to continue without those {rows}:"


_REFUSES = "so a driver refuses to start."
_RESTORED = (
    "Version {by} of {uri} restored version {restored}: {lost} of query {query} ({rows}) {be} no "
    "longer in the table."
)
_NOT_READ_AGAIN = "Spark has logged them as done and does not read them again."
_UNREADABLE = "The checkpoint {location} cannot be read from here: {reason}."
_CORRUPT = "Spark cannot start query {query} from the checkpoint at {location}: {files}."
_CHANGED = (
    "The checkpoint at {location} says in {files} that epoch {epoch} of query {query} ends "
    "elsewhere than its commit in {uri} or its driver's note says."
)
_OTHER_FILES = (
    "The checkpoint at {location} lists in {files} other files than epoch {epoch} of query {query} "
    "read, as its driver's note says."
)
_OVERWRITTEN = (
    "Another driver wrote the file when it woke up, or it was edited or restored. Spark would skip "
    f"rows that were never read, or read rows again; {_REFUSES} "
)


class CheckpointCase(Case):
    """What ``rules_checkpoint`` may find."""

    NO_TRACE = (
        Code.COMMIT_LOG_AHEAD,
        "The checkpoint at {location} has committed epochs up to {committed}, but {uri} at version "
        "{version} has no trace of query {query}.",
        "The dataset was dropped, recreated or restored from before the query began, or this is "
        "the wrong URI or query id.{wrote} The rows of those epochs are not here.",
    )
    DATA_FILES_MISSING = (
        Code.COMMIT_LOG_AHEAD,
        "Version {version} of {uri} references data files that do not exist.",
        "The dataset was dropped and recreated under a driver, or its files were deleted. Rows of "
        "query {query} are gone, and rows of other queries may be hidden.",
    )
    RESTORED = (
        Code.COMMIT_LOG_AHEAD,
        _RESTORED,
        _NOT_READ_AGAIN,
    )
    RESTORED_AND_CLEANED = (
        Code.COMMIT_LOG_AHEAD,
        _RESTORED,
        f"{_NOT_READ_AGAIN}The versions that held them were cleaned up.",
    )
    ROLLED_BACK = (
        Code.COMMIT_LOG_AHEAD,
        "Launch {launch} committed epoch {epoch} of query {query} by version {said_version}, but "
        "in {uri} at version {version} the newest epoch up to there is {newest}.",
        "The dataset was rolled back, restored from a copy or recreated. Spark has logged those "
        "epochs as done and does not read them again: rows after {after} are missing.",
    )
    WATERMARK_JUMPED = (
        Code.WATERMARK_JUMPED,
        "The config says that epoch {epoch} of query {query} was committed by version "
        "{said_version}, but the newest epoch in the versions up to there is {newest}.",
        "The watermark was written by hand or by another tool. Epochs {first} to {epoch} would be "
        "skipped and their rows lost.",
    )
    CHECKPOINT_MISSING = (
        Code.CHECKPOINT_MISSING,
        "Query {query} has watermark {watermark} and belongs to checkpoint {recorded}, but there "
        "is none at {location}{left}.",
        "It was deleted or moved. From an empty checkpoint, every epoch up to the watermark would "
        f"be skipped; {_REFUSES}",
    )
    CHECKPOINT_FOREIGN = (
        Code.CHECKPOINT_FOREIGN,
        "Query {query} belongs to checkpoint {recorded} at {recorded_location}, but {location} "
        "holds checkpoint {found}.",
        "The checkpoint was deleted and recreated, or two queries were mixed up. Its epochs would "
        f"be taken for others that are committed; {_REFUSES}",
    )
    CHECKPOINT_OLDER = (
        Code.CHECKPOINT_OLDER,
        "Epoch {watermark} of query {query} is in the dataset, but its checkpoint at {location} "
        "ends at epoch {planned}.",
        "An older copy of the checkpoint was restored. Spark would plan epochs {first} to "
        f"{{watermark}} again, with other rows, and the sink would skip them; {_REFUSES}",
    )
    CHECKPOINT_ELSEWHERE = (
        Code.CHECKPOINT_UNREADABLE,
        _UNREADABLE,
        "It is on a store that pyarrow does not serve, or on another host's disk. Dataset and "
        "drivers were checked without it.",
    )
    CHECKPOINT_DENIED = (
        Code.CHECKPOINT_UNREADABLE,
        _UNREADABLE,
        "Dataset and drivers were checked without it. A driver of the same user cannot read it "
        "either.",
    )
    CHECKPOINT_WITHOUT_ID = (
        Code.CHECKPOINT_UNREADABLE,
        _UNREADABLE,
        "Its `metadata` is damaged, so Spark cannot start from it either.",
        Severity.ERROR,
    )
    CORRUPT_TO_SET_ASIDE = (
        Code.CHECKPOINT_CORRUPT,
        _CORRUPT,
        "Spark can do without them: {reason}. No row is lost or appended twice.",
    )
    CORRUPT_IN_GAP = (
        Code.CHECKPOINT_CORRUPT,
        _CORRUPT,
        "Versions that would prove which epoch is the newest were cleaned up.",
    )
    CORRUPT = (
        Code.CHECKPOINT_CORRUPT,
        _CORRUPT,
        "Nothing proves that Spark can do without it: {reason}.",
    )
    ENDS_CHANGED = (
        Code.CHECKPOINT_CHANGED,
        _CHANGED,
        _OVERWRITTEN + "What the driver recorded is known.",
    )
    ENDS_CHANGED_BY_DIGEST = (
        Code.CHECKPOINT_CHANGED,
        _CHANGED,
        f"{_OVERWRITTEN}Only the digest of the end offsets was recorded, which are too long to be "
        "kept.",
    )
    ENTRIES_CHANGED = (
        Code.CHECKPOINT_CHANGED,
        _OTHER_FILES,
        _OVERWRITTEN + "What the driver recorded is known.",
    )
    ENTRIES_CHANGED_BY_DIGEST = (
        Code.CHECKPOINT_CHANGED,
        _OTHER_FILES,
        f"{_OVERWRITTEN}Only the digest of the list was recorded, or Spark has compacted the "
        "entry.",
    )
