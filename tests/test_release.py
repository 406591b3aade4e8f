"""What is said about the package in many places is said alike: version, dependencies, licence."""

import ast
import json
import re
import tomllib
from configparser import ConfigParser

import yaml

from nplm_mpi import __version__
from tests.helpers.mpi import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def needed() -> dict[str, str]:
    """The package's dependencies without extras: name and lowest version."""
    found = {}
    for line in PROJECT["dependencies"]:
        name, lowest = re.fullmatch(r"([\w.-]+)>=([\d.]+)", line).groups()  # type: ignore[union-attr]
        found[name.lower()] = lowest
    return found


def test_what_the_package_is_stands_in_one_file() -> None:
    tools = ConfigParser()
    tools.read(ROOT / "setup.cfg")
    assert not [name for name in tools.sections() if name == "metadata" or name.startswith("options")]
    assert PROJECT["dynamic"] == ["version"]
    assert not (ROOT / "setup.py").exists()


def test_the_lists_of_descriptions_say_what_the_project_file_says() -> None:
    meta = json.loads((ROOT / "codemeta.json").read_text())
    recipe = yaml.safe_load((ROOT / ".ci/conda/recipe.yaml").read_text())
    assert meta["description"] == recipe["about"]["summary"] == PROJECT["description"]
    assert meta["keywords"] == PROJECT["keywords"]
    assert meta["programmingLanguage"]["version"] == PROJECT["requires-python"]
    licences = recipe["about"]["license"], yaml.safe_load((ROOT / "CITATION.cff").read_text())["license"]
    assert licences == (PROJECT["license"],) * 2
    assert recipe["about"]["homepage"] == PROJECT["urls"]["Homepage"]
    assert meta["referencePublication"]["url"] == PROJECT["urls"]["Paper"]
    (command,) = recipe["build"]["python"]["entry_points"]
    assert dict([command.split(" = ")]) == PROJECT["scripts"]


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
