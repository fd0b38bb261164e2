"""Sphinx configuration; `make docs` builds with warnings as errors."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "_ext")]
# Importing Airflow writes a configuration file into its home.
os.environ.setdefault("AIRFLOW_HOME", str(ROOT / ".airflow"))

from airflow_provider_lance import __version__  # noqa: E402

project = "airflow-provider-lance"
author = "The airflow-provider-lance authors"
copyright = f"2026, {author}"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "generated"]
exclude_patterns = ["_build", "_ext"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_preserve_defaults = True
autoclass_content = "class"
add_module_names = False

html_theme = "alabaster"
html_title = f"Airflow provider for Lance {release}"
html_theme_options = {
    "description": "Stream into Lance datasets exactly once",
    "fixed_sidebar": True,
    "page_width": "1100px",
    "sidebar_width": "260px",
    "show_relbars": True,
}
html_show_sourcelink = False
