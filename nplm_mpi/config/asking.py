"""From what is asked for, on a command line or from Python, to the configuration of a run."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from nplm_mpi.base.errors import UserError
from nplm_mpi.config.corpus import CorpusConfig
from nplm_mpi.config.models import Kinds
from nplm_mpi.config.options import coerce, typed, unknown_name
from nplm_mpi.config.options import flag as flag_named
from nplm_mpi.config.output import OutputConfig
from nplm_mpi.config.presets import preset
from nplm_mpi.config.run import Config, configure, known_options, read_yaml
from nplm_mpi.config.training import TrainingConfig

# What is done to words, which the model's words have behind them.
TREATMENT = ("treatment", "lowercase", "normalize")
# What a model that is trained further does not hand on: how its ranks stood, and how it began.
NOT_HANDED_ON = (
    "init_from", "init_vectors", "init_bias", "max_examples", "collectives", "parallel", "grid", "threads",
    "balance", "reproducible",
)  # fmt: skip


@dataclass(frozen=True)
class Idle:
    """Where an option does nothing; who gives it there is told so.

    Attributes
    ----------
    names : tuple of str
        The options, by the names of their values.
    where : callable
        Whether they do nothing beside the other arguments.
    without, beside : str
        The option that is missing or in the way, as it is typed.
    """

    names: tuple[str, ...]
    where: Callable[[Any], bool]
    without: str = ""
    beside: str = ""


def refuse_idle(arguments: Any, rules: Iterable[Idle], given: Iterable[str] | None = None) -> None:
    """Raise :class:`UserError` where an option was given that does nothing.

    Parameters
    ----------
    arguments : object
        What the rules are asked about.
    given : iterable of str, optional
        Those of :class:`Parser` if left out.
    """
    given = arguments.given if given is None else given
    flags = getattr(arguments, "flags", {})
    for rule in rules:
        idle = sorted(set(rule.names) & set(given))
        if idle and rule.where(arguments):
            flag = flags.get(idle[0], flag_named(idle[0]))
            why = (
                f"without {rule.without}; give that too, or leave out {flag}"
                if rule.without
                else f"beside {rule.beside}; leave out one of them"
            )
            raise UserError(f"{flag} does nothing {why}")


def option_names(kinds: Kinds) -> set[str]:
    """The names of all options of a run."""
    common = {f.name for section in (CorpusConfig, TrainingConfig, OutputConfig) for f in fields(section)}
    return common | set(known_options(kinds))


def checked_options(kinds: Kinds, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options that come from a program: known ones, of the types that they have.

    Raises
    ------
    UserError
        Naming the first that is neither.
    """
    sections = (CorpusConfig, TrainingConfig, OutputConfig)
    common = {f.name: f for section in sections for f in fields(section)}
    for name in options:
        if name not in option_names(kinds):
            raise UserError(unknown_name(name, option_names(kinds), "option"))
    return {name: coerce(common[name], v, name) if name in common else v for name, v in options.items()}


def configuration(
    kinds: Kinds,
    asked: Mapping[str, Any],
    default_preset: str,
    chosen: str | None = None,
    file: str | None = None,
    started: Config | None = None,
    config_of: Callable[[str], Config] | None = None,
) -> Config:
    """The configuration of a run: a file's, then a preset's, then single options.

    Parameters
    ----------
    kinds : Kinds
    asked : mapping
        Single options by name.
    default_preset : str
        Where neither a preset nor a file nor a model to begin with is named.
    chosen : str, optional
        The preset that is asked for.
    file : str, optional
        A ``config.yaml``.
    started : Config, optional
        That of a run to be continued: it holds where nothing is asked for.
    config_of : callable, optional
        Opens a model's configuration; without it no model is looked at.

    Raises
    ------
    UserError
        For options that are refused, contradict each other, or do nothing; for a model to begin with
        that has other shapes than those asked for.
    """
    base = read_yaml(kinds, file) if file else started
    origin = asked.get("init_from", base.training.init_from if base else "")
    before = config_of(origin) if origin and config_of and started is None else None
    if before:
        base = base or handed_on(before)
    chosen = chosen or ("" if base else default_preset)
    config = configure(kinds, base, **{**(preset(chosen) if chosen else {}), **asked})
    if before:
        config = check_same_model(before, config, origin)
    idle = None if started else config.model.idle_option()
    if idle:
        raise UserError(idle)
    refuse_idle(config, IDLE_SETTINGS, asked)
    refuse_idle_corpus_options(config.corpus, asked)
    return config


def handed_on(before: Config) -> Config:
    """Where a run starts that goes on with a trained model: its shapes, its treatment, how it was trained."""
    plain = TrainingConfig()
    fresh = {name: getattr(plain, name) for name in NOT_HANDED_ON}
    return Config(
        corpus=CorpusConfig(**{name: getattr(before.corpus, name) for name in TREATMENT}),
        model=before.model,
        training=replace(before.training, **fresh),
    )


def check_same_model(before: Config, config: Config, path: str) -> Config:
    """``config``, if it is about a model of the shapes that the one to begin with has.

    Raises
    ------
    UserError
        Listing every difference.
    """
    shapes = [f.name for f in fields(before.model) if not f.metadata.get("of_training")]
    then, now = before.options(), config.options()
    differences = [
        f"{typed(name, then[name][0])}, not {now[name][0] if name in now else 'that'}"
        for name in ["model"] + [name for name in (*shapes, *TREATMENT) if name != "model"]
        if name not in now or now[name][0] != then[name][0]
    ]
    if "model" in now and now["model"][0] != then["model"][0]:
        differences = differences[:1]
    if differences:
        raise UserError(
            f"--init-from {path}: was trained with {'; '.join(differences)}; "
            "leave out what differs, presets too"
        )
    return config


def refuse_idle_corpus_options(config: Any, given: Iterable[str]) -> None:
    """As :func:`refuse_idle` for a :class:`nplm_mpi.config.corpus.CorpusConfig`."""
    refuse_idle(config, IDLE_CORPUS_OPTIONS, given)


IDLE_CORPUS_OPTIONS = (
    Idle(
        ("min_count", "vocabulary_size", "vocabulary_from"),
        lambda corpus: bool(corpus.vocabulary),
        beside="--vocabulary",
    ),
)
IDLE_SETTINGS = (
    Idle(
        ("samples", "effective_samples"),
        lambda config: config.training.softmax != "sampled",
        without="--softmax sampled",
    ),
    Idle(("lr_decay",), lambda config: config.training.schedule != "decay", without="--schedule decay"),
    Idle(
        ("patience",),
        lambda config: config.training.patience > 0 and not config.output.evaluate,
        beside="--no-evaluate",
    ),
    Idle(
        ("beta1", "beta2"),
        lambda config: config.training.optimizer != "adam",
        without="--optimizer adam",
    ),
    Idle(
        ("min_count", "vocabulary_size", "vocabulary_from", "vocabulary", "init", "init_bias"),
        lambda config: bool(config.training.init_from),
        beside="--init-from, whose words and weights are the model's",
    ),
)
