"""What Spark, the JVM and users' functions raise, as this package's errors: certain or transient.

Only an error that is certain to recur gets a terminal class. Spark classifies its own errors by a
condition and an SQLSTATE (https://spark.apache.org/docs/latest/sql-error-conditions.html), the JVM
by the name of the exception's class.
"""

from __future__ import annotations

import errno
import os
import re
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf
from pyspark.errors import PySparkException

from airflow_provider_lance import exceptions
from airflow_provider_lance.exceptions import (
    AccessDeniedError,
    LanceStreamError,
    MasterUnreachableError,
    RowsRefusedError,
    SpecError,
    TerminalError,
    TransientError,
    UserFunctionError,
    error_class,
)
from airflow_provider_lance.spark.kafka_errors import broker_advice, data_loss, missing_topic

__all__ = [
    "access_denied",
    "may_pass",
    "message_of",
    "named_by_worker",
    "named_failure",
    "named_user_failure",
    "users_failure",
]

_CAUSES = 20
_JVM_MAY_PASS = re.compile(
    r"java\.net\.|java\.nio\.channels\.|javax\.net\.|io\.netty\.|java\.lang\.Interrupted"
    r"|java\.lang\.OutOfMemory|.*Timeout|.*Disconnect|.*Retriable|.*SocketException"
)
"""Classes of the JVM after which the same call may succeed."""

_STATES = {
    "0A": SpecError,  # feature not supported
    "21": RowsRefusedError,  # cardinality violation
    "22": RowsRefusedError,  # data exception: a value that cannot be cast, a division by zero
    "23": RowsRefusedError,  # constraint violation
    "42": SpecError,  # syntax error, or an unknown name
    "46": SpecError,  # a setting that cannot be changed
    "P0": RowsRefusedError,  # raise_error() and assert_true() in SQL
}
"""The first two characters of Spark's SQLSTATE: the class of the condition."""

_BAD_ARGUMENTS = ("22022", "22023")
"""An invalid value of a setting or of a function's parameter."""

_MISSING_CLASSES = (
    "java.lang.ClassNotFoundException",
    "java.lang.NoClassDefFoundError",
    "java.lang.NoSuchMethodError",
    "java.lang.NoSuchFieldError",
    "java.lang.AbstractMethodError",
    "java.lang.IncompatibleClassChangeError",
    "java.lang.UnsupportedClassVersionError",
    "java.util.ServiceConfigurationError",
    "org.apache.hadoop.fs.UnsupportedFileSystemException",
)
_DENIED_CLASSES = re.compile(
    r"java\.nio\.file\.AccessDeniedException|org\.apache\.hadoop\.security\.AccessControlException"
    r"|org\.apache\.hadoop\.fs\.(ParentNotDirectory|FileAlreadyExists)Exception"
    r"|org\.apache\.kafka\.common\.errors\.\w*(Authentication|Authorization)Exception"
)
_DENIED = re.compile(r"Permission denied|Read-only file system|Not a directory")
_EXPIRED = re.compile(r"expired|refresh", re.IGNORECASE)
_MKDIR = re.compile(r"(?:mkdir of|Mkdirs failed to create) (?:file:)?(/.*?)(?: failed| \(|$)")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.EBUSY)
_MASTER = re.compile(r"(Could not parse|Invalid) [Mm]aster URL|A master URL must be set")

_SLOW_WORKER = "Python worker failed to connect back"
_STOPPED = "Cannot call methods on a stopped SparkContext"
_JAR_ADVICE = "Add the connector's jars with packages, in the version of your Spark"
_DENIED_ADVICE = "Let the driver's user read and write there, or name another place"


@dataclass(frozen=True)
class _JavaError:
    name: str
    condition: str
    state: str
    message: str


def named_failure(error: BaseException) -> LanceStreamError | None:
    """Return what an error means for a retry, ``None`` if that is unknown or it may be transient.

    Checks the error and its causes in the JVM; an error of this package is returned unchanged.
    """
    if isinstance(error, LanceStreamError):
        return error
    chain = _causes(error)
    if any(_SLOW_WORKER in found.message for found in chain):
        return TransientError(
            f"{_SLOW_WORKER} within the 10 seconds that Spark fixes: the host has too little CPU "
            "for what runs on it. Run less beside the stream, or give its executors fewer cores, "
            "with spark.executor.cores or local[N]"
        )
    for found in chain:
        if found.condition.startswith("PYTHON_") or found.name.endswith(".PythonException"):
            return named_by_worker(found.message) or users_failure(found.message)
    if not chain or any(_JVM_MAY_PASS.match(found.name) for found in chain):
        return None
    if lost := data_loss([(found.condition, found.message) for found in chain]):
        return lost
    for rule in (_by_condition, _by_class):
        for found in reversed(chain):
            if named := rule(found):
                return named
    return None


def named_user_failure(error: Exception, what: str) -> BaseException:
    """Return what an exception in a user's function means; unchanged if it may be transient.

    :param what: names the function in the message.
    """
    if named := named_failure(error):
        return named
    if _causes(error) or may_pass(kind.__name__ for kind in type(error).__mro__):
        return error
    return users_failure("".join(traceback.format_exception(error)), what) or error


def message_of(error: BaseException) -> str:
    """Return an error's message, without the JVM's stack trace that Spark's own errors repeat."""
    if isinstance(error, Py4JJavaError):
        return str(error).split("\n\tat ", 1)[0].strip()
    if isinstance(error, PySparkException):
        return str(error).split("\nJVM stacktrace", 1)[0].strip()
    return str(error)


def access_denied(name: str, message: str) -> AccessDeniedError | None:
    """Return the error for a store that refuses this user for good; otherwise ``None``.

    :param name: the class of the JVM's exception.
    """
    if _EXPIRED.search(message):
        return None  # a retry uses the credentials that are valid then
    if made := _MKDIR.search(message):
        return _not_made(made[1])
    if _DENIED_CLASSES.fullmatch(name) or (name.startswith("java.io.") and _DENIED.search(message)):
        return AccessDeniedError(f"{message}. {broker_advice(name) or _DENIED_ADVICE}")
    return None


def _not_made(folder: str) -> AccessDeniedError | None:
    """Make a folder of this host that Hadoop could not make: only the system gives the reason."""
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        if error.errno in _FULL:
            return None
        return AccessDeniedError(f"cannot make {folder}: {error.strerror}. {_DENIED_ADVICE}")
    return None


def _by_condition(found: _JavaError) -> TerminalError | None:
    if found.condition.endswith(("DATA_SOURCE_NOT_FOUND", "DATA_SOURCE_NOT_ENABLED")):
        return SpecError(f"{found.message}. Correct the source's format. {_JAR_ADVICE}")
    if found.state in _BAD_ARGUMENTS:
        return SpecError(found.message)
    known = _STATES.get(found.state[:2])
    return known(found.message) if known else None


def _by_class(found: _JavaError) -> LanceStreamError | None:
    if found.name in _MISSING_CLASSES:
        said = f"{found.name.rpartition('.')[2]}: {found.message}"
        return SpecError(f"a class of the JVM is missing. {said}. {_JAR_ADVICE}")
    if found.name.endswith(("IllegalArgumentException", "NumberFormatException")):
        return SpecError(found.message)
    if missing := missing_topic(found.name, found.message):
        return missing
    if found.name.endswith((".AnalysisException", ".ParseException")):
        return SpecError(found.message)
    if found.message.startswith(_STOPPED):  # after one minute of unsuccessful requests to a master
        master = SparkConf().get("spark.master", "unknown")
        return MasterUnreachableError(
            f"{_STOPPED}. Its master, {master}, did not answer, or ended the application"
        )
    if _MASTER.search(found.message):
        return SpecError(f"{found.message}. Correct the host of the Spark connection")
    return access_denied(found.name, found.message)


def _causes(error: BaseException) -> list[_JavaError]:
    """Return an error of the JVM and its causes, the outermost first; empty for a Python error."""
    found: list[_JavaError] = []
    each: Any = None
    if isinstance(error, Py4JJavaError):
        each = error.java_exception
    elif isinstance(error, PySparkException):
        each = getattr(error, "_origin", None)
    try:
        while each is not None and len(found) < _CAUSES:
            found.append(_read(each))
            each = each.getCause()
    except Py4JError:  # the JVM has exited
        pass
    return found


def _read(throwable: Any) -> _JavaError:
    name = str(throwable.getClass().getName())
    message = str(throwable.getMessage() or name).strip()
    try:
        condition, state = throwable.getCondition(), throwable.getSqlState()
    except Py4JError:  # not an error of Spark's own
        condition = state = None
    return _JavaError(name, condition or "", state or "", message)


# ----------------------------------------------------------------------- traces of Python code

_RAISED = re.compile(rf"^{re.escape(exceptions.__name__)}\.(\w+): (.*)$", re.MULTILINE)
"""The last line of a Python trace: the class's module, its name, its message."""
_LONGEST = 20_000
_BEGIN = "Traceback (most recent call last):"
_FRAME = re.compile(r'\s+File "(.*)", line \d+')
_NOT_THE_USERS = re.compile(
    r"(site-packages|dist-packages|python)/(pyspark|py4j)/|/(pyspark|py4j-[^/]+)\.zip/"
    r"|/airflow_provider_lance(\.zip)?/|/importlib/__init__|<frozen "
)
_STATE = re.compile(r"\s*SQLSTATE: \w{5}\s*\Z")
_PYTHON_MAY_PASS = re.compile(
    r"Timeout|Connect|Unavailable|Throttl|TooManyRequests|Temporar|Retr(y|ies)|MemoryError"
    r"|BlockingIO|Interrupted|BrokenPipe|gaierror|URLError|SSLError"
)


def named_by_worker(text: str) -> LanceStreamError | None:
    """Return this package's error that a worker raised, ``None`` if it was any other error.

    :param text: Spark's text: only the trace of a worker's error arrives.
    """
    raised = _RAISED.findall(text)
    if not raised:
        return None
    name, message = raised[-1]
    return error_class(name)(message)


def may_pass(names: Iterable[str]) -> bool:
    """Return whether the same call may succeed later, by the names of an exception's classes."""
    return any(_PYTHON_MAY_PASS.search(name) for name in names)


def users_failure(text: str, what: str = "a Python function of the stream") -> TerminalError | None:
    """Return an exception of a user's function, with the user's lines of its trace.

    Lines of Spark and of this package are left out. ``None`` if the same call may succeed later.

    :param text: a text that contains a Python trace.
    """
    _, begin, trace = text.partition(_BEGIN)
    if not begin:
        return UserFunctionError(f"{what} failed: {text}")
    lines, users = _users_lines(_STATE.sub("", trace).strip("\n").split("\n"))
    raised = _last_exception(lines)
    name = raised.partition(":")[0].rpartition(".")[2]
    if may_pass([name]):
        return None
    if not users and name in ("ModuleNotFoundError", "ImportError"):
        return SpecError(
            f"{raised}, in the Python of the driver or its executors: install it there, or name "
            "another Python with PYSPARK_PYTHON or spark.pyspark.python"
        )
    return UserFunctionError(_bounded("\n".join([f"{what} raised {raised}", _BEGIN, *lines])))


def _bounded(text: str) -> str:
    """Truncate a message that holds a whole batch, for summaries and logs."""
    if len(text) <= _LONGEST:
        return text
    half = _LONGEST // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters …\n{text[-half:]}"


def _users_lines(trace: list[str]) -> tuple[list[str], int]:
    """Return a trace without the frames of other code, and the number of remaining frames."""
    kept: list[str] = []
    users, theirs = 0, False
    for line in trace:
        if frame := _FRAME.match(line):
            theirs = bool(_NOT_THE_USERS.search(frame[1]))
            users += not theirs
        elif not line.startswith("    "):
            theirs = False
        if not theirs:
            kept.append(line)
    return kept, users


def _last_exception(lines: list[str]) -> str:
    """Return the trace's last part, type and message: the lines after its last frame."""
    frames = [number for number, line in enumerate(lines) if _FRAME.match(line)]
    rest = lines[frames[-1] + 1 :] if frames else lines
    while rest and rest[0].startswith("    "):
        rest = rest[1:]
    return "\n".join(rest).strip()
