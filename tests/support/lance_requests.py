"""What a request to an S3 server is about, by the layout of a Lance dataset."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import parse_qs, unquote, urlsplit


class Kind(StrEnum):
    """What a request is about, by Lance's layout. The parts of a multipart upload are PUTs."""

    LIST = "list"
    GET_MANIFEST = "get-manifest"
    PUT_MANIFEST = "put-manifest"
    GET_TRANSACTION = "get-transaction"
    PUT_TRANSACTION = "put-transaction"
    GET_DATA = "get-data"
    PUT_DATA = "put-data"
    GET_DELETION = "get-deletion"
    PUT_DELETION = "put-deletion"
    GET_INDEX = "get-index"
    PUT_INDEX = "put-index"
    HEAD = "head"
    DELETE = "delete"
    OTHER = "other"


ROOMS = {
    "_versions": "manifest",
    "_transactions": "transaction",
    "data": "data",
    "_deletions": "deletion",
    "_indices": "index",
}


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the proxy got it; ``path`` has the bucket and the query string."""

    method: str
    path: str
    kind: Kind


def kind_of(method: str, path: str) -> Kind:
    """Classify a request."""
    parts = urlsplit(path)
    words = parse_qs(parts.query, keep_blank_values=True)
    if method == "HEAD":
        return Kind.HEAD
    if method == "DELETE" or (method == "POST" and "delete" in words):
        return Kind.DELETE
    if method == "GET" and ("list-type" in words or "prefix" in words):
        return Kind.LIST
    verb = {"GET": "get", "PUT": "put", "POST": "put"}.get(method)
    room = next((ROOMS[name] for name in unquote(parts.path).split("/") if name in ROOMS), None)
    return Kind(f"{verb}-{room}") if verb and room else Kind.OTHER
