"""Sphinx configuration: ``make docs`` builds the site into docs/_build, offline, warnings as errors."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version as installed
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS), str(DOCS.parent)]
# read when vLLM, torch and JAX load; the API pages import torch and JAX
os.environ.setdefault("OMP_NUM_THREADS", "1")

project = "lagfloor"
version = release = installed("lagfloor")
project_copyright = "the lagfloor authors, Apache-2.0"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "mathml",
    "generated",
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "lagfloor"
html_math_renderer = "mathml"
html_copy_source = False
html_show_sphinx = False

default_role = "py:obj"
nitpicky = True
# docstrings speak of arrays and of names near them; explicit references of the pages are checked by the tests
nitpick_ignore_regex = [(r"py:.*", r".*")]
# "n" or "Task" in the type line of a docstring is a word of it, whatever else has that name
suppress_warnings = ["ref.python"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": False}
napoleon_google_docstring = False
napoleon_use_rtype = False
