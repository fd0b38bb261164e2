"""Write the golden files again: `python -m tests.golden [HEARTBEAT]`; prints what has changed.

HEARTBEAT is a `heartbeat.json` that a driver of this package has left; it is taken as it is.
"""

from __future__ import annotations

import difflib
import json
import sys
from pathlib import Path

from tests.golden.written import FOLDER, WRITERS, text_of


def main(words: list[str]) -> int:
    """Write each file whose content has changed."""
    documents = {name: make() for name, make in WRITERS.items()}
    if words:
        documents["heartbeat"] = json.loads(Path(words[0]).read_text())
    for name, document in documents.items():
        path = FOLDER / f"{name}.json"
        before, now = path.read_text() if path.exists() else "", text_of(document)
        if before == now:
            continue
        path.write_text(now)
        sys.stdout.writelines(
            difflib.unified_diff(before.splitlines(True), now.splitlines(True), path.name, "now")
        )
    return 0


sys.exit(main(sys.argv[1:]))
