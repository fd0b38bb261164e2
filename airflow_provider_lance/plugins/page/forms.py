"""The page's form: read with a limit, and tied to the viewer's session."""

from __future__ import annotations

import hashlib
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN
from starlette.exceptions import HTTPException

if TYPE_CHECKING:
    from fastapi import Request

__all__ = ["form_key", "read_form"]

_MOST_TYPED = 20_000
"""Bytes of a form."""


def form_key(request: Request) -> str:
    """Return what a form of this session must carry: no other site can read the session's cookie.

    A request that proves its user by a header, which no other site can set, has no such cookie.
    """
    session = request.cookies.get(COOKIE_NAME_JWT_TOKEN, "")
    return hashlib.sha256(f"lance-page form {session}".encode()).hexdigest()


async def read_form(request: Request) -> dict[str, str]:
    """Read a form; names and values as text, the last one of each name."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_TYPED:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "This form is too long.")
    read = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)
    return {name: values[-1] for name, values in read.items()}
