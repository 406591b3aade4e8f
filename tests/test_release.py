"""What is said about the package in many places is said alike: version, dependencies, licence."""

import ast
import json
import re
from importlib.metadata import requires

import yaml

from nplm_mpi import __version__
from tests.mpi import ROOT


def needed() -> dict[str, str]:
    """The package's dependencies without extras: name and lowest version."""
    found = {}
    for line in requires("nplm-mpi") or ():
        if "extra ==" not in line:
            name, lowest = re.fullmatch(r"([\w.-]+)\s*>=\s*([\d.]+).*", line).groups()  # type: ignore[union-attr]
            found[name.lower()] = lowest
    return found


def test_one_version_stands_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__
    assert json.loads((ROOT / "codemeta.json").read_text())["version"] == __version__
    assert yaml.safe_load((ROOT / ".ci/conda/recipe.yaml").read_text())["context"]["version"] == __version__
    assert f'version("{__version__}")' in (ROOT / ".ci/spack/package.py").read_text()
    assert f"\n## {__version__} " in (ROOT / "CHANGELOG.md").read_text()


def test_the_conda_recipe_needs_what_the_package_needs() -> None:
    recipe = yaml.safe_load((ROOT / ".ci/conda/recipe.yaml").read_text())
    run = dict(line.split(" >=") for line in recipe["requirements"]["run"])
    assert run.pop("python") == "3.11"
    assert run == needed()
    assert recipe["build"]["noarch"] == "python"


def test_the_spack_package_needs_what_the_package_needs() -> None:
    text = (ROOT / ".ci/spack/package.py").read_text()
    ast.parse(text)
    lowest = {name: float(version) for name, version in re.findall(r'"py-(\w+)@([\d.]+):[^"]*"', text)}
    for name in ("setuptools", "matplotlib"):
        del lowest[name]
    assert lowest == {name: float(version) for name, version in needed().items()}


def test_codemeta_lists_the_dependencies() -> None:
    listed = json.loads((ROOT / "codemeta.json").read_text())["softwareRequirements"]
    assert sorted(name.lower() for name in listed) == sorted(needed())
