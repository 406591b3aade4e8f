"""python -m nplm_mpi.plan: predict speed, time, memory and the best layout before anything is run."""

import math
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from nplm_mpi.base.errors import UserError, same_on_all_ranks
from nplm_mpi.base.wording import duration
from nplm_mpi.comm import Comm
from nplm_mpi.commandline import cli
from nplm_mpi.commandline.arguments import (
    Parser,
    add_model_options,
    add_options,
    add_preset_options,
    build_config,
    origin_named,
)
from nplm_mpi.commandline.streams import print_json
from nplm_mpi.commandline.tables import print_grid
from nplm_mpi.config.asking import Idle, refuse_idle
from nplm_mpi.config.corpus import CorpusConfig
from nplm_mpi.config.options import require
from nplm_mpi.config.presets import preset
from nplm_mpi.config.run import Config
from nplm_mpi.config.training import TrainingConfig
from nplm_mpi.models.kinds import KINDS
from nplm_mpi.planning.networks import NETWORKS, Measured

if TYPE_CHECKING:
    from nplm_mpi.planning.predicting import Prediction
    from nplm_mpi.planning.simulation import Simulated

EXAMPLES = """
python -m nplm_mpi.plan                                   the paper's AP News network on up to 40 ranks
python -m nplm_mpi.plan --vocabulary-words 1000000 --ranks 400,4000 --batches 1,1024 --network infiniband-100g
mpirun -n 2 python -m nplm_mpi.plan --preset mlp9 --corpus brown --ranks 1,2    measures computing and network
python -m nplm_mpi.plan --simulate --ranks 400,4000 --batches 128,1024 --network ethernet-25g
"""

DEFAULT_PRESET = "ap"
RANKS = "1,2,4,8,16,32,40"
# Settings that change what an update costs.
PLANNED = ("batch", "dtype", "collectives", "optimizer", "clip", "average")
# The paper's AP News corpus (section 4).
AP_WORDS, AP_EXAMPLES = 17_964, 13_994_528

# What the simulation is told of the machines.
CLUSTER = ("ranks_per_node", "slow", "node_hours", "disk", "restart_seconds")

IDLE = (
    Idle(CLUSTER, lambda given: not given.simulate, without="--simulate"),
    Idle(("batch",), lambda given: bool(given.batches), beside="--batches"),
    Idle(
        tuple(field.name for field in fields(CorpusConfig) if field.name != "corpus"),
        lambda given: not ("corpus" in given.given or given.config),
        without="--corpus",
    ),
    Idle(
        ("corpus",),
        lambda given: bool(given.vocabulary_words and given.examples),
        beside="--vocabulary-words and --examples",
    ),
)


def main(comm: Comm, argv: Sequence[str]) -> None:
    """Plan as the arguments say. Collective."""
    with same_on_all_ranks():
        arguments = make_parser().parse_args(argv)
        refuse_idle(arguments, IDLE)
        config = comm.on_root(build_config, arguments, DEFAULT_PRESET)
        ranks = positive_numbers("--ranks", arguments.ranks)
        batches = positive_numbers("--batches", arguments.batches or str(config.training.batch))
        slow = slow_nodes(arguments)
        network_name = arguments.network or ("measured" if comm.size > 1 else "shared-memory")
        check_network(network_name, comm)
    V, examples = size_of_corpus(comm, config, arguments)
    from nplm_mpi.planning.measure import Profile, measure_network
    from nplm_mpi.planning.predicting import best_layouts, every_layout

    network = measure_network(comm) if network_name == "measured" else NETWORKS[network_name]
    on_one = comm.shared_sums() is not None if network_name == "measured" else network_name == "shared-memory"
    between = network if isinstance(network, Measured) and not on_one else None
    profile = Profile(comm, config.model, config.training.dtype, on_one, between, config.training)
    schedules = KINDS[config.model.model].schedules(config.training.collectives)
    candidates = every_layout(profile, network, config.training.dtype, V, examples, ranks, batches, schedules)
    table = best_layouts(candidates)
    simulated = None
    if arguments.simulate:
        from nplm_mpi.planning.simulation import Cluster, simulate

        cluster = Cluster(
            arguments.ranks_per_node,
            slow,
            arguments.node_hours,
            arguments.disk * 1e6,
            arguments.restart_seconds,
        )
        simulated = simulate(profile, network, V, table, cluster)
    if comm.is_root:
        show(table, candidates, arguments, config, V, examples, network_name, simulated)


def make_parser() -> Parser:
    """The command's options."""
    parser = Parser(
        "plan",
        "Predict words per second, time, memory and communication for numbers of ranks, and recommend "
        "a layout. Computing is measured on this machine; so is the network under mpirun.",
        EXAMPLES,
    )
    parser.add_argument("--ranks", default=RANKS, help=f"numbers of ranks to compare (default: {RANKS})")
    parser.add_argument("--batches", default="", help="values of K to compare (default: --batch)")
    parser.add_argument(
        "--network",
        default="",
        help=f"what the ranks talk over: measured (needs mpirun), or one of {', '.join(NETWORKS)} with "
        "round figures for latency and bandwidth (default: measured under mpirun, else shared-memory)",
    )
    parser.add_argument(
        "--vocabulary-words",
        type=int,
        help=f"V, the number of words (default: that of --corpus, else {AP_WORDS}, the paper's AP News)",
    )
    parser.add_argument(
        "--examples",
        type=int,
        help=f"number of examples per epoch (default: that of --corpus, else {AP_EXAMPLES})",
    )
    add_simulation_options(parser)
    parser.add_argument("--figure", default="", help="draw the table into this file (.png, .pdf, .svg)")
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output")
    add_preset_options(parser, DEFAULT_PRESET)
    plain = preset(DEFAULT_PRESET)
    add_model_options(parser, plain)
    add_options(parser, TrainingConfig, PLANNED, plain)
    add_options(parser, CorpusConfig, plain=plain | {"corpus": ()})
    return parser


def add_simulation_options(parser: Parser) -> None:
    """Add ``--simulate`` and what it is told of the machines."""
    group = parser.add_argument_group(
        "Updates played, with ranks that wait for each other and nodes that fail"
    )
    group.add_argument(
        "--simulate",
        action="store_true",
        help="play updates of all these ranks: each computes as long as updates took here, each message is "
        "sent and waited for; recommend K, layout and how often to save, and say how sure that is",
    )
    group.add_argument(
        "--ranks-per-node",
        type=int,
        default=1,
        help="ranks that share a node's connection; between them memory is the network (default: 1)",
    )
    group.add_argument(
        "--slow",
        metavar="SHARE:FACTOR",
        default="0:1",
        help="a share of the nodes that take FACTOR times as long, as in 0.01:1.5 (default: none)",
    )
    group.add_argument(
        "--node-hours",
        type=float,
        default=50_000.0,
        help="hours between two failures of one node, on average (default: 50000)",
    )
    group.add_argument(
        "--disk", type=float, default=200.0, help="MB/s that a checkpoint is written with (default: 200)"
    )
    group.add_argument(
        "--restart-seconds",
        type=float,
        default=120.0,
        help="seconds from a failure until training goes on (default: 120)",
    )


def slow_nodes(arguments: Any) -> tuple[float, float]:
    """``--slow``, after a look at the other figures of the machines."""
    for name in ("ranks_per_node", "node_hours", "disk"):
        value = getattr(arguments, name)
        require(0 < value < math.inf, f"--{name.replace('_', '-')} {value:g}: give a number above 0")
    seconds = arguments.restart_seconds
    require(0 <= seconds < math.inf, f"--restart-seconds {seconds:g}: give 0 or more")
    try:
        share, factor = map(float, arguments.slow.split(":"))
    except ValueError:
        share, factor = -1.0, 0.0
    require(
        0 <= share <= 1 and 1 <= factor < math.inf,
        f"--slow {arguments.slow!r}: give a share from 0 to 1 and a factor of 1 or more, as in 0.01:1.5",
    )
    return share, factor


def positive_numbers(option: str, text: str) -> list[int]:
    """``"1,2,40"`` as ascending numbers."""
    parts = [part.strip() for part in text.split(",")]
    require(
        all(part.isdecimal() and int(part) > 0 for part in parts),
        f"{option} {text!r}: give positive numbers with commas between them, as in 1,2,40",
    )
    return sorted({int(part) for part in parts})


def check_network(name: str, comm: Comm) -> None:
    """Refuse a network that is not known or cannot be measured."""
    known = ["measured", *NETWORKS]
    require(name in known, f"--network {name!r}: give one of {', '.join(known)}")
    require(
        name != "measured" or comm.size > 1,
        "--network measured: start several ranks, as in mpirun -n 2 python -m nplm_mpi.plan",
    )


def size_of_corpus(comm: Comm, config: Config, arguments: Any) -> tuple[int, int]:
    """V and the examples of an epoch: as given, else of the named corpus, else the paper's. Collective."""
    V, examples = AP_WORDS, AP_EXAMPLES
    if "corpus" in arguments.given or arguments.config:
        from nplm_mpi.corpus import open_prepared, prepare

        with origin_named(arguments, {arguments.config: config} if arguments.config else {}):
            corpus = open_prepared(comm.on_root(prepare, config.corpus))
        start, stop = corpus.parts["train"]
        V, examples = len(corpus.vocabulary), stop - start
    V, examples = arguments.vocabulary_words or V, arguments.examples or examples
    with same_on_all_ranks():
        require(V > 0, f"--vocabulary-words {V}: give 1 or more")
        require(examples > 0, f"--examples {examples}: give 1 or more")
    return V, examples


def show(
    table: list["Prediction"],
    candidates: list["Prediction"],
    arguments: Any,
    config: Config,
    V: int,
    examples: int,
    network: str,
    simulated: "list[Simulated] | None" = None,
) -> None:
    """The table, the recommendation for each number of ranks, warnings, and the figure."""
    from nplm_mpi.planning.predicting import recommendation
    from nplm_mpi.planning.simulation import HEADER, as_rows, cells
    from nplm_mpi.planning.simulation import advice as simulated_advice

    advice = [recommendation(table, ranks) for ranks in sorted({p.ranks for p in table})]
    total = psutil.virtual_memory().total
    warnings = [
        f"warning: {p.ranks} ranks, {p.layout}, K={p.batch}: a rank needs {p.bytes_per_rank / 1e9:,.1f} GB, "
        f"this machine has {total / 1e9:,.1f} GB"
        for p in table
        if p.bytes_per_rank > total
    ]
    if arguments.figure:
        draw(table, V, network, Path(arguments.figure))
    if arguments.json:
        result = {
            "V": V,
            "examples": examples,
            "network": network,
            "table": [asdict(p) for p in table],
            "candidates": [asdict(p) for p in candidates],
            "recommendation": advice,
            "warnings": warnings,
        }
        if simulated is not None:
            result |= {"simulated": as_rows(simulated), "recommendation": simulated_advice(simulated)}
        print_json(result)
        return
    print(
        f"V={V:,} {config.model.describe()}, {config.training.dtype}; "
        f"{examples:,} examples per epoch; network: {network}"
    )
    header = (
        "ranks", "K", "rows x columns", "Allreduce", "words/s", "epoch", "communication", "memory/rank",
    )  # fmt: skip
    rows = [
        (
            f"{p.ranks:,}", f"{p.batch:,}", p.layout, p.collectives, f"{p.words_per_second:,.0f}",
            duration(p.seconds_per_epoch), f"{p.communication:.0%}", f"{p.bytes_per_rank / 1e9:,.2f} GB",
        )
        for p in table
    ]  # fmt: skip
    print_grid(header, rows)
    if simulated is not None:
        print("played:")
        print_grid(HEADER, [cells(line) for line in simulated])
        advice = simulated_advice(simulated)
    print("\n".join(["recommended:", *advice, *warnings]))


def draw(table: list["Prediction"], V: int, network: str, path: Path) -> None:
    """Words per second against ranks, one line per K, and ideal speed-up beside it.

    Raises
    ------
    UserError
        Without matplotlib, or if the file cannot be written.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("--figure: needs matplotlib: pip install matplotlib") from error
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    for K in sorted({p.batch for p in table}):
        points = sorted((p.ranks, p.words_per_second) for p in table if p.batch == K)
        ranks, speeds = zip(*points, strict=True)
        (line,) = axes.loglog(ranks, speeds, "o-", label=f"K={K}")
        axes.loglog(ranks, [speeds[0] * r / ranks[0] for r in ranks], ":", color=line.get_color(), alpha=0.5)
    axes.set_xlabel("ranks")
    axes.set_ylabel("words per second, predicted (dotted: ideal)")
    axes.set_title(f"V={V:,}, network: {network}")
    axes.legend()
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise UserError(f"--figure {path}: {' '.join(str(error).split())}") from error


if __name__ == "__main__":
    cli.run("plan", main)
