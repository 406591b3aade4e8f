"""What a run is: frozen dataclasses that validate themselves, and YAML.

The dataclasses are the only place where an option's name, default and help text
stand; :mod:`nplm_mpi.commandline.arguments` turns them into command-line options.  Which kinds of
models there are, and so which options, is known above: the functions here are told.
"""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nplm_mpi.base import files
from nplm_mpi.base.errors import UserError
from nplm_mpi.config.conflicts import CONFLICTS, refuse_conflicts
from nplm_mpi.config.corpus import CorpusConfig
from nplm_mpi.config.models import Kinds, ModelConfig
from nplm_mpi.config.options import build_section, coerce, flag, require, unknown_name
from nplm_mpi.config.output import OutputConfig
from nplm_mpi.config.training import TrainingConfig

# The sections that are the same for all kinds of models.
COMMON: dict[str, type] = {"corpus": CorpusConfig, "training": TrainingConfig, "output": OutputConfig}


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole run.

    Attributes
    ----------
    corpus : CorpusConfig
    model : ModelConfig
        Of the class that belongs to the kind of model.
    training : TrainingConfig
    output : OutputConfig
    """

    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    model: ModelConfig
    training: TrainingConfig = field(default_factory=TrainingConfig)
    output: OutputConfig = field(default_factory=OutputConfig)

    def __post_init__(self) -> None:
        refuse_conflicts(self.options(), (*CONFLICTS, *self.model.conflicts))

    def options(self) -> dict[str, tuple[Any, Any]]:
        """Value and default of every option by its name."""
        sections = (getattr(self, section.name) for section in dataclasses.fields(self))
        return {f.name: (getattr(s, f.name), f.default) for s in sections for f in dataclasses.fields(s)}

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Plain dictionaries, lists and numbers, ready for YAML or JSON."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    def replace(self, **options: Any) -> "Config":
        """A copy with the named options (of any section) changed; the kind of model stays.

        Raises
        ------
        UserError
            If no section has an option.
        """
        return self._changed(self.model, options)

    def _changed(self, model: ModelConfig, options: dict[str, Any]) -> "Config":
        """A copy with this model and these options."""
        sections = {name: getattr(self, name) for name in COMMON} | {"model": model}
        for name, section in sections.items():
            mine = {f.name for f in dataclasses.fields(section)} & set(options)
            sections[name] = dataclasses.replace(section, **{key: options[key] for key in mine})
            options = {key: value for key, value in options.items() if key not in mine}
        for name in options:
            raise UserError(unknown_name(name, self.options(), "option"))
        return Config(**sections)


def configure(kinds: Kinds, base: Config | None = None, /, **options: Any) -> Config:
    """``base`` with the named options changed, the kind of model among them.

    Parameters
    ----------
    kinds : Kinds
    base : Config, optional
        By default all defaults of the first kind.

    Raises
    ------
    UserError
        For values that are refused, and for options of another kind of model.
    """
    base = base or Config(model=next(iter(kinds.values())).options())
    own = {name: options.pop(name) for name in known_options(kinds) if name in options}
    model = build_model(kinds, {**dataclasses.asdict(base.model), **own})
    known = {*known_options(kinds), *base.options()}
    for name in options:
        if name not in known:
            raise UserError(unknown_name(name, known, "option"))
    return base._changed(model, options)


def from_dict(kinds: Kinds, data: dict[str, Any], source: str = "configuration") -> Config:
    """Build from :meth:`Config.to_dict`'s output; missing keys take their defaults.

    Files of version 0.1 have the options of one kind of model in a section of their own, named
    after it.
    """
    sections = ["corpus", "model", "training", "output"]
    require(isinstance(data, dict), f"{source}: expected sections {sections}")
    found: dict[str, dict[str, Any]] = {name: {} for name in sections}
    for name, options in data.items():
        if not isinstance(name, str) or name not in (*sections, *kinds):
            raise UserError(f"{source}: {unknown_name(name, sections, 'section')}")
        require(isinstance(options, dict | None), f"{source}, {name}: expected options and their values")
        of_training = {f.name for f in dataclasses.fields(TrainingConfig)}
        for key, value in (options or {}).items():
            section = name if name in sections else "training" if key in of_training else "model"
            found[section][key] = value
    common = {name: build_section(kind, found[name], f"{source}, {name}") for name, kind in COMMON.items()}
    return Config(model=build_model(kinds, found["model"], f"{source}, model"), **common)


def known_options(kinds: Kinds) -> dict[str, list[str]]:
    """The options of all kinds of models, and which kinds have them."""
    found: dict[str, list[str]] = {}
    for name, kind in kinds.items():
        for fld in dataclasses.fields(kind.options):
            found.setdefault(fld.name, []).append(name)
    return found


def build_model(kinds: Kinds, options: dict[str, Any], source: str = "") -> ModelConfig:
    """The model that options describe, of the class of its kind.

    An option that only other kinds have may be given as what it is without being asked for; so
    ``--no-direct`` goes with every kind.

    Parameters
    ----------
    kinds : Kinds
    options : dict
        By name; ``"model"`` is the kind.
    source : str
        The file and section that they are from, if they are not from the command line.

    Raises
    ------
    UserError
        For unknown kinds and names, wrong types, and options of another kind.
    """

    def called(name: str) -> str:
        return f"{source}: {name}" if source else flag(name)

    chosen = options.get("model", next(iter(kinds)))
    if not isinstance(chosen, str) or chosen not in kinds:
        raise UserError(f"{called('model')}: {unknown_name(chosen, kinds, 'kind of model')}")
    known, section = known_options(kinds), kinds[chosen].options
    values = {}
    for name, value in options.items():
        if name not in known:
            raise UserError(f"{source}: {unknown_name(name, known, 'option')}")
        owner = chosen if chosen in known[name] else known[name][0]
        fld = next(f for f in dataclasses.fields(kinds[owner].options) if f.name == name)
        value = coerce(fld, value, called(name))
        if owner == chosen:
            values[name] = value
        elif value != fld.default:
            owners = " and ".join(kinds[other].title for other in known[name])
            raise UserError(
                f"{called(name)}: an option of {owners}; give --model {known[name][0]}, or leave it out"
            )
    return section(**values)


def read_yaml(kinds: Kinds, path: str | Path) -> Config:
    """A :class:`Config` from a YAML file as written by :func:`write_yaml`."""
    from nplm_mpi.config import plain_yaml  # a library that few commands need

    data = plain_yaml.read(path, f"--config {path}")
    return from_dict(kinds, {} if data is None else data, f"--config {path}")


def write_yaml(path: str | Path, config: Config, header: str = "") -> None:
    """Write ``config``, whole or not at all, so that ``--config PATH`` runs it again; raises OSError."""
    import yaml

    text = yaml.safe_dump(config.to_dict(), sort_keys=False)
    files.write_text(path, "".join(f"# {line}\n" for line in header.splitlines()) + text)
