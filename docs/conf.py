"""Sphinx: ``sphinx-build -W docs docs/_build`` makes the HTML pages."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nplm_mpi import __version__

project = "nplm-mpi"
author = "The nplm-mpi contributors"
release = version = __version__
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
default_role = "literal"
html_theme = "alabaster"
html_theme_options = {
    "description": "The neural probabilistic language model, trained over MPI",
    "fixed_sidebar": True,
    "page_width": "1080px",
    "sidebar_width": "240px",
}
html_sidebars = {"**": ["about.html", "searchfield.html", "navigation.html"]}
html_show_sourcelink = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_google_docstring = False
napoleon_use_ivar = True

# Full references must lead somewhere. Short ones may be to what is not shown here, and the words
# of numpydoc's type fields ("(K,) array") are none.
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!nplm_mpi\.).*")]
