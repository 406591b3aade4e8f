"""How a model is trained, whatever its kind."""

from dataclasses import dataclass
from math import inf

from nplm_mpi.config.options import check_choices, option, require, shown


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
    init_from: str = option(
        "",
        "begin with the parameters, the vocabulary and the settings of a trained model (a file, or a run's "
        "folder) and go on with --corpus; options given beside it win",
        metavar="MODEL",
    )
    init_vectors: str = option(
        "", "begin with the word features of a file in word2vec's text or binary format", metavar="FILE"
    )
    optimizer: str = option(
        "sgd",
        "how the parameters move: sgd: plain ascent; adagrad; adam (with --weight-decay: AdamW)",
        choices=("sgd", "adagrad", "adam"),
    )
    beta1: float = option(0.9, "adam: memory of the first moment")
    beta2: float = option(0.999, "adam: memory of the second moment")
    clip: float = option(0.0, "largest norm of the gradient of the mean log likelihood (0: no limit)")
    average: float = option(
        0.0, "memory, per update, of the moving average of the weights that is evaluated and saved (0: none)"
    )
    on_overflow: str = option(
        "halve",
        "what happens when numbers overflow: halve: the run goes back to the beginning of the epoch and on "
        "with half the rate, 8 times at most; stop: it ends",
        choices=("halve", "stop"),
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
    self_normalize: float = option(
        0.0,
        "penalty on (log Z)^2, with Z the sum that probabilities are divided by: scores without it come near "
        "to logarithms of probabilities (see score --unnormalized); begin with --init-bias unigram",
        metavar="ALPHA",
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
        require(self.threads >= 1, f"--threads {self.threads}: give 1 or more")
        require(self.samples >= 1, f"--samples {self.samples}: give 1 or more")
        require(
            1 <= self.effective_samples < inf, f"--effective-samples {self.effective_samples}: give 1 or more"
        )
        for name in ("beta1", "beta2", "average"):
            value = getattr(self, name)
            require(0 <= value < 1, f"--{name} {value}: give 0 or more, below 1")
        require(0 <= self.self_normalize < inf, f"--self-normalize {self.self_normalize}: give 0 or more")
        require(0 <= self.clip < inf, f"--clip {self.clip}: give 0 or more")
        if self.grid:
            rows, _ = parse_grid(self.grid)
            require(
                self.batch >= rows,
                f"--grid {self.grid}: {rows} rows share {self.batch} examples; give --batch {rows} or more",
            )
        check_choices(self)


def parse_grid(text: str) -> tuple[int, int]:
    """``"2x20"`` is (2, 20): rows, columns."""
    rows, _, columns = text.partition("x")
    require(
        all(n.isdecimal() and len(n) < 10 and int(n) > 0 for n in (rows, columns)),
        f"--grid {shown(text)}: give rows x columns, as in 2x20",
    )
    return int(rows), int(columns)
