"""What a store answered, in a few words: read from the texts that Lance and pyarrow raise.

Both pass on an object store's XML and the system's errors, each in its own wrapping. Lance hides
why it got no connection; then this module tries one itself.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import threading
from dataclasses import dataclass
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

__all__ = ["StoreAnswer", "answer_of", "raw_text", "short_answer"]

_PROBE_SECONDS = 3.0
_MOST_RAW = 2_000


@dataclass(frozen=True, slots=True)
class StoreAnswer:
    """What a store said, and what to do about it; ``advice`` is empty if that is unknown.

    ``no_bucket`` means that the bucket or container does not exist, ``denied`` that the same
    request is refused until credentials or permissions change.
    """

    said: str
    advice: str = ""
    no_bucket: bool = False
    denied: bool = False

    @property
    def sentence(self) -> str:
        """Return both."""
        return "; ".join(filter(None, (self.said, self.advice)))


_CREDENTIALS = "check the credentials: the connection's, the storage options' or the environment's"
_KNOWN: tuple[tuple[str, StoreAnswer], ...] = (
    (
        r"ExpiredToken|RequestExpired|TokenRefreshRequired|token .*expired",
        StoreAnswer("its credentials have expired", "give it fresh ones", denied=True),
    ),
    (
        r"RequestTimeTooSkewed|REQUEST_TIME_TOO_SKEWED",
        StoreAnswer("this machine's clock is not the store's", "set the clock of this machine"),
    ),
    (
        r"InvalidAccessKeyId|INVALID_ACCESS_KEY_ID|SignatureDoesNotMatch|SIGNATURE_DOES_NOT_MATCH"
        r"|InvalidToken|AuthenticationFailed|INVALID_CLIENT_TOKEN_ID",
        StoreAnswer("the store does not accept these credentials", _CREDENTIALS, denied=True),
    ),
    (
        r"CredentialsNotLoaded|no providers in chain|no Azure account name",
        StoreAnswer("there are no credentials for this store", _CREDENTIALS, denied=True),
    ),
    (
        r"NoSuchBucket|NO_SUCH_BUCKET|ContainerNotFound"
        r"|specified (bucket|container) does not exist",
        StoreAnswer(
            "there is no such bucket", "check the bucket's name and the endpoint", no_bucket=True
        ),
    ),
    (
        r"PermanentRedirect|incorrectly configured region|AuthorizationHeaderMalformed",
        StoreAnswer("the bucket is in another region", "set the storage option `region`"),
    ),
    (
        r"AccessDenied|ACCESS_DENIED|\b403 Forbidden|\b401 Unauthorized|AuthorizationFailure"
        r"|AuthorizationPermissionMismatch",
        StoreAnswer(
            "the store denies access", "let the user of these credentials do this", denied=True
        ),
    ),
    (
        r"SlowDown|SLOW_DOWN|TooManyRequests|\b429 Too",
        StoreAnswer("the store asks for fewer requests", "try again later"),
    ),
    (
        r"Could not resolve host",
        StoreAnswer("the name of the store's host is unknown here", "check the endpoint"),
    ),
    (
        r"Could not connect to server|Connection refused",
        StoreAnswer(
            "nothing listens where the store should", "start the store, or check the endpoint"
        ),
    ),
    (
        r"curlCode: (35|51|58|60|77)\b",
        StoreAnswer(
            "the store and this machine agree on no secure connection",
            "check whether the endpoint is https or http, and who signed its certificate",
        ),
    ),
    (
        r"curlCode: 28\b|operation timed out|Timeout was reached",
        StoreAnswer("the store does not answer", "check the endpoint and the network"),
    ),
    (
        r"No object store provider found for scheme",
        StoreAnswer("Lance knows no such kind of store", "check the URI's scheme"),
    ),
)
_LOCAL: tuple[tuple[str, StoreAnswer], ...] = (
    (
        r"Permission denied|Operation not permitted",
        StoreAnswer("this user has no permission", "let the user read and write it", denied=True),
    ),
    (
        r"Not a directory",
        StoreAnswer("a part of the path is a file and no folder", "check the path"),
    ),
    (
        r"Read-only file system",
        StoreAnswer("the file system is read-only", "mount it for writing"),
    ),
    (r"No space left|Disk quota", StoreAnswer("the disk is full", "free some space there")),
    (
        r"Stale file handle|Transport endpoint is not connected",
        StoreAnswer("the mounted store is gone", "mount it again"),
    ),
)
_SYSTEM = re.compile(r"\b(os error|[Ee]rrno) [0-9]+")
_CODE = re.compile(r"<Code>([^<]{1,100})</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{1,300})")
_AWS = re.compile(
    r"AWS Error (?P<code>[A-Z_]+)(?: \((?P<status>HTTP status \d+)\))? during \w+ operation: "
    r"(?:Unable to parse ExceptionName: (?P<name>\w+) Message: )?(?P<said>[^\n]*)"
)
_CURL = re.compile(r"curlCode: \d+, (?P<said>[^;\n]+)(?:; Details: (?P<more>[^\n]+))?")
_REQUEST = re.compile(r"\b(?:GET|PUT|POST|HEAD|DELETE) (https?://[^/\s?]+)")
_STATUS = re.compile(r"status code: (\d{3} [A-Za-z ]+)")
_POSITION = re.compile(r",? ?/home/runner/\S+\.rs:\d+(:\d+)?")
_PRIVATE = re.compile(
    r"<(Token-\d+|AWSAccessKeyId|StringToSign\w*|CanonicalRequest\w*|SignatureProvided)>[^<]*</\1>"
)
_SIGNED = re.compile(r"\b(X-Amz-[\w-]+|sig|Signature)=[^&\s]+", re.IGNORECASE)


def answer_of(error: BaseException) -> StoreAnswer:
    """Return what a store answered; tries a connection if Lance does not say why it got none.

    :param error: an error of Lance or pyarrow.
    """
    text = str(error)
    for pattern, answer in (*(_LOCAL if _SYSTEM.search(text) else ()), *_KNOWN):
        if re.search(pattern, text):
            return _with(answer, _words(text))
    if "error sending request" in text:
        return _unconnected(text)
    return StoreAnswer(_words(text) or _first_line(error))


def short_answer(error: BaseException) -> str:
    """Return the answer alone, for a message that says itself what to do."""
    return answer_of(error).said


def raw_text(error: BaseException) -> str:
    """Return the error's own text without Lance's source positions, tokens and signatures."""
    text = _SIGNED.sub(r"\1=***", _PRIVATE.sub("", _POSITION.sub("", str(error))))
    return text[:_MOST_RAW]


def _with(answer: StoreAnswer, words: str) -> StoreAnswer:
    said = f"{answer.said} ({words})" if words else answer.said
    return StoreAnswer(said, answer.advice, answer.no_bucket, answer.denied)


def _words(text: str) -> str:
    """Return the store's own words, empty if there are none."""
    if "Permission denied" in text:
        return f"user id {os.geteuid()}"
    if code := _CODE.search(text):
        message = _MESSAGE.search(text)
        return f"{code[1]}: {message[1].strip().rstrip('.')}" if message else code[1]
    if curl := _CURL.search(text):
        return (curl["more"] or curl["said"]).strip()
    if aws := _AWS.search(text):
        said = aws["said"].partition(" (Request ID")[0].strip().rstrip(".")
        name = aws["name"] or (aws["status"] if aws["code"] == "UNKNOWN" else aws["code"])
        return f"{name}: {said}" if said and said != "No response body" else name
    if status := _STATUS.search(text):
        return status[1].strip()
    return ""


def _first_line(error: BaseException) -> str:
    # Lance appends ", /home/runner/…rs:644:29", its own source position, which users cannot use.
    said = _POSITION.sub("", (str(error).splitlines() or [""])[0])
    return said.removeprefix("LanceError(IO): ") or type(error).__name__


def _unconnected(text: str) -> StoreAnswer:
    """Return why there is no connection to the endpoint that an error names."""
    request = _REQUEST.search(text)
    endpoint = request[1] if request else ""
    advice = "check the endpoint and the network"
    if not endpoint:
        return StoreAnswer("the store gives no connection", advice)
    found: list[str] = []
    # The system looks names up without a deadline of its own.
    probe = threading.Thread(target=lambda: found.append(_try(endpoint)), daemon=True)
    probe.start()
    probe.join(_PROBE_SECONDS)
    return StoreAnswer(found[0] if found else f"{endpoint} does not answer", advice)


def _try(endpoint: str) -> str:
    """Connect once, and return what is wrong."""
    place = urlsplit(endpoint)
    host, secure = place.hostname or "", place.scheme == "https"
    if place.scheme in getproxies() and not proxy_bypass(host):
        return f"there is no connection to {endpoint} through the proxy of the environment"
    try:
        address = (host, place.port or (443 if secure else 80))
        with socket.create_connection(address, timeout=_PROBE_SECONDS) as connection:
            if secure:
                ssl.create_default_context().wrap_socket(connection, server_hostname=host).close()
    except socket.gaierror:
        return f"the host name {host} is unknown here"
    except ssl.SSLCertVerificationError as error:
        return f"the certificate of {endpoint} is not trusted here ({error.verify_message})"
    except ssl.SSLError:
        return f"{endpoint} does not speak TLS"
    except ConnectionRefusedError:
        return f"nothing listens at {endpoint}"
    except TimeoutError:
        return f"{endpoint} does not answer"
    except OSError as error:
        return f"there is no connection to {endpoint} ({error.strerror or error})"
    return f"{endpoint} broke off the request"
