"""A simulated clock: versions get the age they would have if epochs were seconds apart.

Cleanup goes by the age of versions, and keeps the last 10 minutes' of a live query. So a run that
goes as fast as it can would never see one removed.
"""

from __future__ import annotations

import os
import time
from pathlib import Path


class Ageing:
    """The manifests of one dataset on a local disk, and the epoch that each was made in.

    :param interval: simulated seconds between two epochs.
    """

    def __init__(self, uri: str, interval: float = 10.0) -> None:
        self._versions, self._interval = Path(uri, "_versions"), interval
        self._made: dict[str, int] = {}
        self._since = 0

    def age(self, epochs: int) -> None:
        """Set the manifests' times back, after so many epochs in all; call before a maintenance."""
        # The names count down: the oldest one comes first.
        manifests = sorted(self._versions.glob("*.manifest"), reverse=True)
        new = [path.name for path in manifests if path.name not in self._made]
        for number, name in enumerate(new):
            self._made[name] = self._since + round(number / len(new) * (epochs - self._since))
        self._made = {path.name: self._made[path.name] for path in manifests}
        self._since = epochs
        now = time.time()
        for path in manifests:
            then = now - (epochs - self._made[path.name]) * self._interval
            os.utime(path, (then, then))
