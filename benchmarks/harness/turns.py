"""Contestants take turns, so that the machine's mood hits all alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

Result = TypeVar("Result")


def by_turns(
    workers: Mapping[str, Callable[[int], Result]],
    rounds: int,
    advance: Callable[[str], None] = lambda label: None,
) -> dict[str, list[Result]]:
    """Call every worker once a round, each round beginning with the next one.

    :param workers: by name; each is given the number of the round, from 0.
    :param advance: told the name after each turn; a :func:`~.progress.progress` gives one.
    :returns: what each worker returned, round by round.
    """
    names = list(workers)
    results: dict[str, list[Result]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            results[name].append(workers[name](number))
            advance(name)
    return results
