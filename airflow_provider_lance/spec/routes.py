"""Where the rows of one stream go, by the value of a column: one dataset for each value."""

from __future__ import annotations

from airflow_provider_lance.exceptions import RowsRefusedError
from airflow_provider_lance.protocol import option_parsers as forms
from airflow_provider_lance.protocol.decoding import shown

__all__ = ["PLACE", "ROUTE", "route_name", "route_segment", "route_template", "template_beside"]

PLACE = "{route}"
"""Where a URI template takes the value."""

ROUTE = "route."
"""The beginning of a route's name among the query's side tables."""

_LONGEST = 200
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_")
_UPPER = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")


def route_segment(value: str) -> str:
    """Return a route's value as one segment of a path; no two values share one.

    An upper-case letter becomes ``=`` and the lower-case one, so that file systems that ignore case
    keep them apart. Any other byte than ``a-z``, ``0-9``, ``-`` and ``_`` becomes ``=0`` and two
    hexadecimal digits.

    :raises RowsRefusedError: the value is empty, or its segment has more than 200 characters.
    """
    segment = "".join(map(_spelled, value.encode()))
    if not segment or len(segment) > _LONGEST:
        raise RowsRefusedError(
            f"routeBy: the value {shown(value)} "
            + ("makes a folder's name too long" if segment else "is empty")
            + ", so no dataset can be named after it. Cast or filter it in sql; nothing of this "
            "epoch was committed"
        )
    return segment


def _spelled(byte: int) -> str:
    if byte in _PLAIN:
        return chr(byte)
    return f"={chr(byte).lower()}" if byte in _UPPER else f"=0{byte:02x}"


def route_name(value: str) -> str:
    """Return the name of a route among the query's side tables."""
    return f"{ROUTE}{route_segment(value)}"


def template_beside(uri: str) -> str:
    """Return where routes lie without ``routeUri``: in the folder ``orders.routes``."""
    return f"{uri.rstrip('/').removesuffix('.lance')}.routes/{PLACE}.lance"


def route_template(value: object) -> str:
    """Read ``routeUri``.

    :raises ValueError: not an absolute place, or it does not have ``{route}`` once in its last
        part.
    """
    place = forms.text(value)
    forms.location(place.replace(PLACE, "route"))
    folder, _, last = place.rpartition("/")
    if PLACE in folder or last.count(PLACE) != 1:
        raise ValueError(f"a URI with {PLACE} once, in the part after the last '/'")
    return place
