"""The texts of findings about epochs: stalled, in flight, not folded, in doubt."""

from __future__ import annotations

from airflow_provider_lance.diagnostics.catalogue import Case
from airflow_provider_lance.diagnostics.findings import Code, Severity

__all__ = ["EpochCase", "Say"]

_HANGS = (
    "The source, Spark's tasks or the store hang, or the epoch is too large: the driver's log and "
    "the Spark UI show which. No row is lost."
)
_IN_FLIGHT = (
    "Epoch {epoch} of query {query} is planned{since} and not committed; the watermark is "
    "{watermark}."
)
_BEHIND = (
    "The config's watermark of query {query} is {folded}, and history shows epoch {watermark} in "
    "version {epoch_version}: {epochs} since the last fold."
)
_GAP = "{missing} of the versions since the last fold of query {query}{span} were cleaned up"
_CLEANED = "A foreign cleanup removed versions before their epochs were folded into the config. "


class Say:
    """The texts of steps."""

    CHECKPOINT_FIRST = (
        "Do first what the finding about the checkpoint says: with it, the epochs are proven."
    )
    STOP = "Stop the driver after its current epoch: it writes down what it knows:"
    ARE_THERE = "If the rows of all epochs up to {doubt} are in the table:"
    ARE_LOST = (
        "Or, if they are not, go on without those of epochs {first} to {doubt} that are not there, "
        "which are lost then:"
    )
    IS_THERE = "If the rows of epoch {doubt} are in the table:"
    IS_NOT = "Or, if they are not; Spark reads epoch {doubt} again:"
    BEFORE = (
        "Look for the rows of epochs {first} to {doubt} in the table. What is missing of epochs "
        "{first} to {before} is lost: Spark has them as done, and does not read them again."
    )
    OWNER_BACK = "Put the owner record back that a driver wrote:"


class EpochCase(Case):
    """What ``rules_epochs`` may find."""

    EPOCH_STALLED = (
        Code.STALLED,
        "Epoch {epoch} of query {query} is planned and not committed since {since} ({waited}).",
        _HANGS,
    )
    DRIVER_STALLED = Code.STALLED, "The driver of query {query} stalls: {reason}.", _HANGS
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
        "The driver has not folded for a long time.",
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
        "driver might append those epochs again.",
        Severity.CRITICAL,
    )
    GAP_WITHOUT_CHECKPOINT = (
        Code.HISTORY_GAP,
        _GAP + ", and which epochs were in them is unknown without the checkpoint.",
        _CLEANED.rstrip(),
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
        _CLEANED + "The driver knows its own epochs and continues; its next fold closes the gap.",
        Severity.WARNING,
    )
    GAP_IN_DOUBT = (
        Code.HISTORY_GAP,
        _GAP + ", and epoch {doubt} was planned: it is unknown whether the rows of epochs {first} "
        "to {doubt} are in the dataset.",
        _CLEANED + "Or an older version was restored before that. The rows of epoch {doubt} lie in "
        "the source between the offsets in the checkpoint's files offsets/{before} and "
        "offsets/{doubt}; either all of them are in the table, or none.",
    )
