"""Draw inputs, read them, and keep what ended in another way than it should."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.fuzz.subjects import Subject


@dataclass
class Tally:
    """What became of the inputs of each kind."""

    accepted: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    raw: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    wrong: dict[tuple[str, str], tuple[Any, str]] = field(default_factory=dict)
    """By kind and place of the error: the first input that led there, and its traceback."""

    @property
    def inputs(self) -> int:
        return sum((self.accepted + self.refused + self.raw).values())


def fuzz(kinds: Sequence[Subject], inputs: int, seed: int) -> Tally:
    """Give so many inputs to all kinds, by their shares; the seed decides them all."""
    tally = Tally()
    order = [kind for kind in kinds for _ in range(kind.share)]
    for number in range(inputs):
        kind = order[number % len(order)]
        made = kind.make(Random(f"{seed}-{number}"))
        began = time.perf_counter()
        try:
            kind.read(made)
        except kind.refusals:
            tally.refused[kind.name] += 1
        except Exception as error:
            tally.raw[kind.name] += 1
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{type(error).__name__} in {place.name}, line {place.lineno}"
            tally.wrong.setdefault((kind.name, where), (made, traceback.format_exc()))
        else:
            tally.accepted[kind.name] += 1
        tally.seconds[kind.name] += time.perf_counter() - began
    return tally
