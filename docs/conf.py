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

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "sphinx_design",
    "generated",
]
exclude_patterns = ["_build", "_ext"]

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_preserve_defaults = True
autoclass_content = "class"
add_module_names = False

# The prompt and the output of a console are not copied.
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True

html_theme = "furo"
html_title = f"Airflow provider for Lance {release}"
html_static_path = ["_static"]
html_css_files = ["lance.css"]
html_theme_options = {
    "navigation_with_keys": True,
    "source_repository": "https://github.com/airflow-provider-lance/airflow-provider-lance/",
    "source_branch": "main",
    "source_directory": "docs/",
    "light_css_variables": {"color-brand-primary": "#0b6bcb", "color-brand-content": "#0b6bcb"},
    "dark_css_variables": {"color-brand-primary": "#6cb6ff", "color-brand-content": "#6cb6ff"},
}
html_show_sourcelink = False
pygments_style = "default"
pygments_dark_style = "github-dark"
