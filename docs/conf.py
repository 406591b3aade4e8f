"""Sphinx: ``sphinx-build -W docs docs/_build`` makes the HTML pages."""

import pydoc
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nplm_mpi import __version__

project = "nplm-mpi"
author = "The nplm-mpi contributors"
release = version = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
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

# References must lead somewhere. The words of numpydoc's type fields ("(K,) array") are none.
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!nplm_mpi\.).*")]


def leave_if_it_exists(app: Any, env: Any, node: Any, shown: Any) -> Any:
    """A reference to something real that no page describes stays plain text, without a warning."""
    if node.get("refdomain") != "py":
        return None
    target, module = node["reftarget"], node.get("py:module") or ""
    names = (target, f"{module}.{target}", f"{module}.{node.get('py:class')}.{target}")
    return shown if any(map(exists, names)) else None


def exists(name: str) -> bool:
    """Whether a dotted name can be imported; without an MPI library what needs one is believed."""
    try:
        return pydoc.locate(name) is not None
    except pydoc.ErrorDuringImport:
        return True


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("missing-reference", leave_if_it_exists)
