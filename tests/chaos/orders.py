"""What a driver is told to do to itself, as a file says it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from tests.chaos.plan import Control, Whom


@dataclass(frozen=True, slots=True)
class Orders:
    """One driver's fate. ``point`` is empty if it shall not harm itself.

    ``pause`` makes it stop there (SIGSTOP) in place of dying, ``hold`` makes the next manifest that
    it publishes after the point wait. ``sign`` is a path: ``sign.ready`` appears when Spark is
    there and holds the JVM's pid, ``sign.struck`` when the point is reached, ``sign.held`` when a
    manifest waits. ``fresh`` is how old a handle may be, in seconds, 0 as usual. ``reads`` is how a
    Lance source reads, empty if the source is another. ``java`` is for the JVM.
    """

    spec: str
    sign: str
    point: str = ""
    occurrence: int = 1
    whom: Whom = Whom.ALL
    pause: bool = False
    hold: bool = False
    fresh: float = 0.0
    reads: str = ""
    control: Control = Control.NONE
    java: str = ""

    def dumps(self) -> str:
        """Return the orders as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Orders:
        """Read orders from JSON."""
        given = json.loads(text)
        given |= {"whom": Whom(given["whom"]), "control": Control(given["control"])}
        return cls(**given)
