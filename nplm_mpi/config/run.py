"""What a run is: frozen dataclasses that validate themselves, presets, and YAML.

The dataclasses are the only place where an option's name, default and help text
stand; :mod:`nplm_mpi.commandline.arguments` turns them into command-line options.
"""

import dataclasses
import json
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from nplm_mpi.base.errors import UserError
from nplm_mpi.config.deep import MODERN, DeepConfig
from nplm_mpi.config.options import LARGEST_NUMBER, check_choices, option, require, shown, unknown_name


@dataclass(frozen=True)
class CorpusConfig:
    """Which text, and how it becomes tokens."""

    corpus: tuple[str, ...] = option(
        ("python-docs",), "the text: python-docs (built in), brown, or paths of text files (plain or .gz)"
    )
    text: str = option(
        "auto",
        "how the text is read: stream, sentences, or auto (stream for python-docs and brown, else sentences)",
        choices=("auto", "stream", "sentences"),
        flags={
            "--stream": ("stream", "one continuous stream: contexts run across lines"),
            "--sentences": ("sentences", "a sentence per line, between boundary symbols"),
        },
    )
    min_count: int = option(4, "merge words seen fewer times than this into <unk> (0 or 1: none)")
    vocabulary_from: str = option(
        "all",
        "where words are counted: on the whole corpus or on the training part only",
        choices=("all", "train"),
    )
    vocabulary_size: int = option(0, "keep only the N most frequent words (0: no limit)", metavar="N")
    vocabulary: str = option("", "file to take the vocabulary from, one word per line", metavar="FILE")
    treatment: str = option(
        "none",
        "what is done to the words: none: they stay as they are; ap: lower case, numbers and proper nouns "
        "to symbols, as the paper did for AP News",
        choices=("none", "ap"),
    )
    split: tuple[str, ...] = option(
        (), "sizes of train, valid, test: token counts, fractions of 1, or 'rest'", separator=","
    )
    valid: tuple[str, ...] = option((), "validation text files, instead of a split")
    test: tuple[str, ...] = option((), "test text files, instead of a split")
    allow_unk: bool = option(False, "take a literal <unk> in the text as the rare-word symbol")

    def __post_init__(self) -> None:
        require(len(self.corpus) > 0, "--corpus: name a corpus or at least one file")
        require(self.min_count >= 0, f"--min-count {self.min_count}: give 0 or more")
        require(self.vocabulary_size >= 0, f"--vocabulary-size {self.vocabulary_size}: give 0 or more")
        check_choices(self)


@dataclass(frozen=True)
class ModelConfig:
    """The shape of the network (section 2)."""

    model: str = option(
        "network",
        "kind of model: network: outputs of their own for each word, as in section 2; energy: the predicted "
        "word's features are an input, too, as in section 5.1; deep: beyond the paper, see its options",
        choices=("network", "energy", "deep"),
    )
    per_word_v: bool = option(
        False, "with --model energy: energy weights v for each word instead of common ones"
    )
    order: int = option(5, "n: predict a word from the n-1 words before it", most=1 << 16)
    features: int = option(30, "m: features per word", most=1 << 20)
    hidden: int = option(50, "h: hidden units (0: direct connections only)", most=1 << 20)
    direct: bool = option(False, "connect the word features directly to the output")

    def __post_init__(self) -> None:
        require(self.order >= 2, f"--order {self.order}: give 2 or more (n-1 context words)")
        require(self.features >= 1, f"--features {self.features}: give 1 or more")
        require(self.hidden >= 0, f"--hidden {self.hidden}: give 0 or more")
        require(
            self.hidden > 0 or self.direct,
            "--hidden 0 with --no-direct leaves no network: give --direct or a positive --hidden",
        )
        check_choices(self)
        energy = self.model == "energy"
        require(not (energy and self.direct), "--model energy has no direct connections: give --no-direct")
        require(energy or not self.per_word_v, "--per-word-v needs the energy model: give --model energy too")

    @property
    def inputs(self) -> int:
        """Length of x, (n-1)m."""
        return (self.order - 1) * self.features

    @property
    def columns(self) -> int:
        """Columns of O = [b | U | W]: D = 1 + h (+ (n-1)m with direct connections)."""
        return 1 + self.hidden + (self.inputs if self.direct else 0)

    def count_parameters(self, V: int) -> int:
        """Free parameters for a vocabulary of V words (section 2)."""
        m, h = self.features, self.hidden
        if self.model == "energy":
            return V * (m + 1) + h * (1 + self.order * m) + (V * h if self.per_word_v else h)
        return V * (m + self.columns) + h * (1 + self.inputs)


@dataclass(frozen=True)
class TrainingConfig:
    """How the network is trained (section 4 of the paper) and how fast."""

    batch: int = option(1, "K: examples per update (1: the paper's per-example ascent)", most=1 << 20)
    lr: float = option(1e-3, "eps_0: initial learning rate, per example")
    lr_decay: float = option(1e-8, "r: the rate is eps_0 / (1 + r t) after t examples")
    schedule: str = option(
        "decay",
        "how the learning rate falls: decay: the paper's eps_0 / (1 + r t); cosine: to a hundredth over all "
        "epochs; plateau: halved after each epoch without a better validation perplexity",
        choices=("decay", "cosine", "plateau"),
    )
    warmup: float = option(0.0, "share of all examples over which the learning rate rises to --lr")
    weight_decay: float = option(1e-4, "weight decay per example, on weights and features, not on biases")
    epochs: int = option(10, "passes over the training part, at most")
    patience: int = option(2, "stop after this many epochs without a better validation perplexity (0: never)")
    max_examples: int = option(
        -1, "train on only the first N examples of an epoch (-1: all; 0: only initialize)"
    )
    seed: int = option(1, "seed of the initialization and of the shuffling")
    dtype: str = option("float32", "number type of the parameters", choices=("float32", "float64"))
    shuffle: bool = option(False, "visit the examples of each epoch in random order")
    init_bias: str = option(
        "zero",
        "where the output biases start: at zero or at the log unigram probabilities",
        choices=("zero", "unigram"),
    )
    softmax: str = option(
        "exact",
        "where gradients come from: exact: from all words; sampled: from words drawn from a bigram (Bengio "
        "and Senecal 2003); evaluation is always exact",
        choices=("exact", "sampled"),
    )
    samples: int = option(256, "with --softmax sampled: draws per update, at least")
    effective_samples: float = option(
        32.0, "with --softmax sampled: draw more until the effective sample size is so large"
    )
    collectives: str = option(
        "auto",
        "sums over the ranks: one: one Allreduce per update; two: denominators first; paper: maximum, "
        "denominators, gradients; auto: one or two by measurement between machines, one on a single machine",
        choices=("auto", "one", "two", "paper"),
    )
    parallel: str = option(
        "vocabulary",
        "how ranks share the work: vocabulary: each rank owns output words, as in the paper's section 3.2; "
        "shared: each rank has its own part of the examples, and all change the same memory without locks, "
        "as in section 3.1",
        choices=("vocabulary", "shared"),
    )
    grid: str = option(
        "",
        "arrangement of the ranks: R rows of C ranks; the rows share each mini-batch, the ranks of a row the "
        "vocabulary (default: one row of all ranks)",
        metavar="RxC",
    )
    threads: int = option(1, "threads of each rank, for large slices of the vocabulary")
    balance: bool = option(
        False,
        "deal the output words by how fast the ranks are, anew while training: for cores or machines that "
        "are not equally fast; the last digits of results then depend on a clock",
    )
    reproducible: bool = option(False, "bitwise the same model for every number of ranks (slower)")

    def __post_init__(self) -> None:
        require(self.batch >= 1, f"--batch {self.batch}: give 1 or more")
        require(0 < self.lr < inf, f"--lr {self.lr}: give a positive number")
        require(0 <= self.lr_decay < inf, f"--lr-decay {self.lr_decay}: give 0 or more")
        require(0 <= self.weight_decay < inf, f"--weight-decay {self.weight_decay}: give 0 or more")
        require(
            self.batch * self.lr * self.weight_decay < 1,
            "--batch x --lr x --weight-decay must stay below 1: an update would flip every weight's sign",
        )
        require(0 <= self.warmup < 1, f"--warmup {self.warmup}: give 0 or more, below 1")
        require(self.epochs >= 1, f"--epochs {self.epochs}: give 1 or more")
        require(self.patience >= 0, f"--patience {self.patience}: give 0 or more")
        require(self.max_examples >= -1, f"--max-examples {self.max_examples}: give 0 or more")
        require(self.seed >= 0, f"--seed {self.seed}: give 0 or more")
        require(
            not (self.grid and self.parallel == "shared"),
            f"--grid {self.grid}: ranks that share memory form no grid; leave out --grid or --parallel",
        )
        require(self.threads >= 1, f"--threads {self.threads}: give 1 or more")
        for name, value in (("grid", self.grid), ("parallel shared", self.parallel == "shared"),
                            ("reproducible", self.reproducible)):  # fmt: skip
            require(
                self.threads == 1 or not value,
                f"--threads {self.threads} does not go with --{name}; start as many ranks instead",
            )
        if self.grid:
            rows, _ = parse_grid(self.grid)
            require(
                self.batch >= rows,
                f"--grid {self.grid}: {rows} rows share {self.batch} examples; give --batch {rows} or more",
            )
        for name, given in (("grid", self.grid), ("parallel shared", self.parallel == "shared"),
                            ("reproducible", self.reproducible)):  # fmt: skip
            require(
                not (self.balance and given), f"--balance does not go with --{name}; leave out one of them"
            )
        for name, value, allowed in (
            ("collectives", self.collectives, ("auto", "one")),
            ("grid", self.grid, ("",)),
            ("parallel", self.parallel, ("vocabulary",)),
        ):
            require(
                not self.reproducible or value in allowed,
                f"--{name} {value} sums in the ranks' order; leave out --{name} or --reproducible",
            )
        require(self.samples >= 1, f"--samples {self.samples}: give 1 or more")
        require(
            1 <= self.effective_samples < inf, f"--effective-samples {self.effective_samples}: give 1 or more"
        )
        for name, usual in (
            ("grid", self.grid == ""),
            ("parallel", self.parallel == "vocabulary"),
            ("threads", self.threads == 1),
            ("balance", not self.balance),
            ("reproducible", not self.reproducible),
        ):
            require(
                self.softmax == "exact" or usual,
                f"--softmax sampled does not go with --{name}; leave out one of them",
            )
        check_choices(self)


@dataclass(frozen=True)
class OutputConfig:
    """What a run writes, where and how often."""

    out: str = option("", "folder of the run (default: run-DATE-TIME)", metavar="DIR")
    resume: str = option(
        "never",
        "continue the run in --out from its checkpoint; auto: start one where there is none",
        choices=("never", "always", "auto"),
        bare="always",
    )
    checkpoint_every: str = option(
        "10m", "time between checkpoints, in updates (500), seconds (30s) or minutes (10m)", metavar="N|Ns|Nm"
    )
    evaluate: bool = option(True, "evaluate on validation after each epoch, on both parts at the end")
    log_every: float = option(5.0, "seconds between log lines")
    tensorboard: bool = option(False, "write the numbers for TensorBoard too, to tensorboard/ in --out")
    json: bool = option(False, "print the summary as one JSON object")

    def __post_init__(self) -> None:
        parse_interval(self.checkpoint_every)
        require(self.log_every > 0, f"--log-every {self.log_every}: give a positive number of seconds")


@dataclass(frozen=True)
class Config:
    """A whole run."""

    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    deep: DeepConfig = field(default_factory=DeepConfig)
    output: OutputConfig = field(default_factory=OutputConfig)

    def __post_init__(self) -> None:
        require(
            self.training.schedule != "plateau" or self.output.evaluate,
            "--schedule plateau: the rate follows the validation perplexity, which --no-evaluate leaves out; "
            "leave out one of them",
        )
        if self.model.model == "energy":
            for name, default in ONLY_OF_THE_NETWORK.items():
                value = getattr(self.training, name)
                shown = f"--{name}" if value is True else f"--{name} {value}"
                require(value == default, f"--model energy knows no {shown}: leave it out")
        if not self.is_deep:
            self.deep.refuse_options()
            return
        settings = self.training
        require(self.model.hidden > 0, "--hidden 0: the deep network needs hidden units")
        require(not self.model.direct, "--direct: the deep network has no direct connections; leave it out")
        require(
            not self.deep.tied or self.deep.tied_projection or self.model.hidden == self.model.features,
            f"--hidden {self.model.hidden}: with --no-tied-projection the rows of C see the hidden units; "
            f"give as many as --features, {self.model.features}",
        )
        for name, value, allowed in (
            ("grid", settings.grid, ("",)),
            ("parallel", settings.parallel, ("vocabulary",)),
            ("collectives", settings.collectives, ("auto", "one")),
            ("reproducible", settings.reproducible, (False,)),
            ("threads", settings.threads, (1,)),
            ("balance", settings.balance, (False,)),
            ("softmax", settings.softmax, ("exact",)),
        ):
            require(value in allowed, f"--{name}: not with --model deep; leave it out")

    @property
    def is_deep(self) -> bool:
        """Whether the network is the deep one."""
        return self.model.model == "deep"

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Plain dictionaries, lists and numbers, ready for YAML or JSON."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def from_dict(cls, data: dict[str, Any], source: str = "configuration") -> "Config":
        """Build from :meth:`to_dict`'s output; missing keys take their defaults."""
        require(isinstance(data, dict), f"{source}: expected sections {list(SECTIONS)}")
        for name in data:
            if name not in SECTIONS:
                raise UserError(f"{source}: {unknown_name(name, SECTIONS, 'section')}")
        sections = {name: {} if data.get(name) is None else data[name] for name in SECTIONS}
        return cls(
            **{name: build_section(SECTIONS[name], sections[name], f"{source}, {name}") for name in SECTIONS}
        )

    def replace(self, **options: Any) -> "Config":
        """A copy with the named options (of any section) changed; an unknown name is a :class:`UserError`."""
        sections, left = {}, dict(options)
        for name, section in SECTIONS.items():
            mine = {f.name: left.pop(f.name) for f in dataclasses.fields(section) if f.name in left}
            sections[name] = dataclasses.replace(getattr(self, name), **mine)
        for name in left:
            known = [f.name for section in SECTIONS.values() for f in dataclasses.fields(section)]
            raise UserError(unknown_name(name, known, "option"))
        return Config(**sections)


# Ways to train that the energy model does not have, and what they are without.
ONLY_OF_THE_NETWORK = {
    "grid": "",
    "parallel": "vocabulary",
    "reproducible": False,
    "collectives": "auto",
    "threads": 1,
    "balance": False,
}

SECTIONS: dict[str, type] = {
    "corpus": CorpusConfig,
    "model": ModelConfig,
    "training": TrainingConfig,
    "deep": DeepConfig,
    "output": OutputConfig,
}


def build_section(section: type, data: dict[str, Any], source: str) -> Any:
    """An instance of a config dataclass from plain data, with types checked."""
    require(isinstance(data, dict), f"{source}: expected options and their values")
    fields = {f.name: f for f in dataclasses.fields(section)}
    values = {}
    for key, value in data.items():
        if key not in fields:
            raise UserError(f"{source}: {unknown_name(key, fields, 'option')}")
        values[key] = coerce(fields[key], value, source)
    return section(**values)


def coerce(fld: dataclasses.Field, value: Any, source: str) -> Any:
    """``value`` in the field's type, or a :class:`UserError` that names the option."""
    kind = type(fld.default)
    if isinstance(value, bool) and "bare" in fld.metadata:
        return fld.metadata["bare"] if value else fld.default
    if kind is tuple:
        items = value if isinstance(value, (list, tuple)) else [value]
        for item in items:
            require(isinstance(item, str | int | float), f"{source}: {fld.name} cannot be {shown(item)}")
        return tuple(str(item) for item in items)
    if kind is float and isinstance(value, (int, str)) and not isinstance(value, bool):
        try:
            return float(value)  # YAML reads 1e-3 as a string
        except (ValueError, OverflowError):
            pass
    require(
        isinstance(value, kind) and (kind is bool or not isinstance(value, bool)),
        f"{source}: {fld.name} must be a {kind.__name__}, not {shown(value)}",
    )
    if kind is int:
        require(abs(value) <= LARGEST_NUMBER, f"{source}: {fld.name} is a number beyond all measure")
    return value


def parse_interval(text: str) -> tuple[float, str]:
    """``"500"`` is (500, "updates"), ``"30s"`` (30, "seconds"), ``"10m"`` (600, "seconds")."""
    unit = {"s": 1.0, "m": 60.0}.get(text[-1:])
    try:
        amount = float(text[:-1]) * unit if unit else float(int(text))
    except ValueError:
        amount = 0.0
    require(
        0 < amount < float("inf"),
        f"--checkpoint-every {text!r}: give updates (500), seconds (30s) or minutes (10m)",
    )
    return amount, "seconds" if unit else "updates"


def parse_grid(text: str) -> tuple[int, int]:
    """``"2x20"`` is (2, 20): rows, columns."""
    rows, _, columns = text.partition("x")
    require(
        all(n.isdecimal() and len(n) < 10 and int(n) > 0 for n in (rows, columns)),
        f"--grid {shown(text)}: give rows x columns, as in 2x20",
    )
    return int(rows), int(columns)


def _table1(order: int, hidden: int, features: int, direct: bool) -> dict[str, Any]:
    """A network of Table 1 with the settings of section 4."""
    return dict(
        order=order,
        hidden=hidden,
        features=features,
        direct=direct,
        batch=1,
        lr=1e-3,
        lr_decay=1e-8,
        weight_decay=1e-4,
        epochs=10 if direct else 20,
    )


PRESETS: dict[str, dict[str, Any]] = {
    "mlp1": _table1(5, 50, 60, True),
    "mlp3": _table1(5, 0, 60, True),
    "mlp5": _table1(5, 50, 30, True),
    "mlp7": _table1(3, 50, 30, True),
    "mlp9": _table1(5, 100, 30, False),
    "ap": dict(
        order=6,
        hidden=60,
        features=100,
        direct=True,
        batch=1,
        lr=1e-3,
        lr_decay=1e-8,
        weight_decay=1e-5,
        epochs=5,
        treatment="ap",
    ),
    # The energy model of section 5.1 in MLP5's sizes, with a rate that trains well on Brown.
    "energy": dict(
        model="energy",
        per_word_v=True,
        order=5,
        features=30,
        hidden=50,
        direct=False,
        batch=32,
        lr=0.03,
        schedule="cosine",
        weight_decay=3e-5,
        epochs=12,
        patience=0,
        shuffle=True,
        init_bias="unigram",
    ),
    "small": dict(
        order=4,
        hidden=50,
        features=30,
        direct=False,
        batch=16,
        lr=0.02,
        lr_decay=1e-6,
        weight_decay=1e-4,
        epochs=8,
        shuffle=True,
        init_bias="unigram",
    ),
    **MODERN,
}


def preset(name: str) -> dict[str, Any]:
    """The options that a preset sets."""
    if name not in PRESETS:
        raise UserError(f"--preset: {unknown_name(name, PRESETS, 'preset')}")
    return dict(PRESETS[name])


def read_yaml(path: str | Path) -> Config:
    """A :class:`Config` from a YAML file as written by :func:`write_yaml`."""
    from nplm_mpi.config import plain_yaml  # a library that few commands need

    data = plain_yaml.read(path, f"--config {path}")
    return Config.from_dict({} if data is None else data, f"--config {path}")


def write_yaml(path: str | Path, config: Config, header: str = "") -> None:
    """Write ``config`` so that ``--config PATH`` runs it again."""
    import yaml

    text = yaml.safe_dump(config.to_dict(), sort_keys=False)
    Path(path).write_text("".join(f"# {line}\n" for line in header.splitlines()) + text, encoding="utf-8")
