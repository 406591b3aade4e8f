"""Sphinx: ``sphinx-build -W docs docs/_build`` makes the HTML pages."""

import logging
import pydoc
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from nplm_mpi import __version__
from nplm_mpi.config.conflicts import CONFLICTS
from nplm_mpi.models.kinds import KINDS

project = "nplm-mpi"
author = "The nplm-mpi contributors"
release = version = __version__
extensions = [
    *("myst_parser", "sphinx_copybutton", "sphinx_design"),
    *("sphinx.ext.autodoc", "sphinx.ext.intersphinx", "sphinx.ext.napoleon", "sphinx.ext.viewcode"),
]
exclude_patterns = ["_build"]
default_role = "literal"
html_theme = "pydata_sphinx_theme"
html_title = f"nplm-mpi {version}"
html_theme_options = {
    # All pages stand in the sidebar, so that the header has room for the search.
    "navbar_align": "left",
    "navbar_center": [],
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"index": [], "**": ["globaltoc.html"]}
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["pages.css"]
# What is copied are the commands of a console, without the sign before them and without what they print.
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_google_docstring = False
napoleon_use_ivar = True

# Names of other packages lead to their pages, where these can be asked what they describe; without a network
# the names stay text, and that is no failure of ours.
intersphinx_mapping = {
    "python": ("https://docs.python.org/3", None),
    "numpy": ("https://numpy.org/doc/stable", None),
    "scipy": ("https://docs.scipy.org/doc/scipy", None),
    "h5py": ("https://docs.h5py.org/en/stable", None),
    "mpi4py": ("https://mpi4py.readthedocs.io/en/stable", None),
}
intersphinx_timeout = 5
napoleon_preprocess_types = True
napoleon_type_aliases = {
    "ndarray": ":class:`numpy.ndarray`",
    "array": ":class:`numpy.ndarray`",
    "Path": ":class:`pathlib.Path`",
    "callable": ":class:`collections.abc.Callable`",
    "sequence": ":class:`collections.abc.Sequence`",
    "iterable": ":class:`collections.abc.Iterable`",
}
logging.getLogger("sphinx.sphinx.ext.intersphinx").addFilter(
    lambda record: "failed to reach any of the inventories" not in record.getMessage()
)

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


class ConflictsTable(SphinxDirective):
    """``.. conflicts::``: the program's own table of options that do not go together."""

    def run(self) -> list[nodes.Node]:
        kinds = [conflict for kind in KINDS.values() for conflict in kind.options.conflicts]
        rows = [("one option", "the other", "because"), *map(self.row, (*CONFLICTS, *kinds))]
        group = nodes.tgroup("", *(nodes.colspec(colwidth=width) for width in (22, 28, 50)), cols=3)
        head, body = nodes.thead(), nodes.tbody()
        for number, row in enumerate(rows):
            entries = [nodes.entry("", nodes.paragraph("", text)) for text in row]
            (body if number else head).append(nodes.row("", *entries))
        group.extend((head, body))
        return [nodes.table("", group)]

    @staticmethod
    def row(conflict: Any) -> tuple[str, str, str]:
        """A conflict's three cells."""
        return str(conflict.one), str(conflict.other), conflict.reason


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.add_directive("conflicts", ConflictsTable)
    app.connect("missing-reference", leave_if_it_exists)
