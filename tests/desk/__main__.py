"""Print the table of trouble as Markdown: `python -m tests.desk`."""

from __future__ import annotations

import sys

from tests.desk.table import lines

if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in lines())
