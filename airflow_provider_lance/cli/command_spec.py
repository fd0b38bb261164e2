"""Declarations of commands and arguments: once, for argparse and for Airflow's own parser."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "Argument",
    "Command",
    "argument",
    "duration",
    "epoch",
    "epochs",
    "number",
    "pair",
    "seconds",
]

_DURATION = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)(ms|s|m|h|d)?")
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, None: 1}


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: its flags, and further arguments of ``ArgumentParser.add_argument``."""

    flags: tuple[str, ...]
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Command:
    """One command, or a group of them; ``run`` is the ``module:function`` that executes it."""

    name: str
    help: str
    run: str = ""
    arguments: tuple[Argument, ...] = ()
    commands: tuple[Command, ...] = ()
    description: str = ""


def argument(*flags: str, **settings: Any) -> Argument:
    """Declare an argument as ``add_argument`` would."""
    return Argument(flags, settings)


def seconds(text: str) -> float:
    """Read a duration such as ``90``, ``1.5s``, ``10m``, ``12h`` or ``7d``; return seconds."""
    # Every `airflow` command imports this module, and hardly any calls these functions.
    from airflow_provider_lance.protocol.decoding import shown
    from airflow_provider_lance.protocol.option_parsers import MOST_SECONDS

    found = _DURATION.fullmatch(text.strip())
    if not found:
        raise ArgumentTypeError(f"{shown(text)} is not a duration: write 90, 1.5s, 10m, 12h or 7d")
    length = float(found[1]) * _UNITS[found[2]]
    if length > MOST_SECONDS:
        raise ArgumentTypeError(f"{shown(text)} is more than a century")
    return length


def duration(text: str) -> int:
    """Read a duration; return whole seconds, rounded up."""
    return -int(-seconds(text) // 1)


def number(text: str) -> int:
    """Read an integer of 0 or more."""
    from airflow_provider_lance.protocol.decoding import shown
    from airflow_provider_lance.protocol.option_parsers import count

    try:
        return count(text)
    except ValueError as error:
        raise ArgumentTypeError(f"{shown(text)} is not {error}") from None


def epoch(text: str) -> int:
    """Read an epoch, or -1 for none."""
    return -1 if text == "-1" else number(text)


def epochs(text: str) -> tuple[int, int]:
    """Read the first and the last of some epochs, ``3-5``."""
    first, separator, last = text.partition("-")
    if not separator or number(first) > number(last):
        raise ArgumentTypeError("write FIRST-LAST, such as 3-5")
    return number(first), number(last)


def pair(text: str) -> tuple[str, str]:
    """Read ``NAME=VALUE``; error messages do not quote it."""
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise ArgumentTypeError("write NAME=VALUE, such as region=eu-central-1")
    return name.strip(), value
