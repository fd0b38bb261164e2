"""Templates into HTML: everything escaped and masked, with the style sheet in the page."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from airflow_provider_lance.compat import redact
from airflow_provider_lance.plugins.page import formatting as words

__all__ = ["Templates"]

_PACKAGE = "airflow_provider_lance.plugins.page"


class Templates:
    """The page's templates, and the security policy for their output."""

    def __init__(self) -> None:
        self._environment = Environment(
            loader=PackageLoader(_PACKAGE),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_masked,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(
            {name: getattr(words, name) for name in words.__all__},
        )
        style = (files(_PACKAGE) / "templates" / "style.css").read_text(encoding="utf-8")
        # This package's own text, and the only one that is not escaped.
        self._environment.globals["style"] = Markup(style)
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        self.policy = "; ".join(
            [
                "default-src 'none'",
                f"style-src 'sha256-{digest}'",
                "base-uri 'none'",
                "form-action 'none'",
                "frame-ancestors 'self'",
            ]
        )
        """The value of Content-Security-Policy: no script, no image, no font, one style sheet."""

    def render(self, name: str, **values: Any) -> str:
        """Return a page."""
        return self._environment.get_template(name).render(values)


def _masked(value: Any) -> Any:
    """Return a template's value with the secrets that Airflow knows masked."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return redact(value)
    return value
