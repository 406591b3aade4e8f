"""What a run leaves behind."""

from dataclasses import dataclass
from math import inf

from nplm_mpi.config.options import option, require, shown


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
    stall_warning: float = option(60.0, "seconds without an update after which a line says so (0: never)")
    stall_end: float = option(
        600.0,
        "seconds without an update after which all end, as where a machine has vanished (0: never)",
    )
    tensorboard: bool = option(False, "write the numbers for TensorBoard too, to tensorboard/ in --out")
    json: bool = option(False, "print the summary as one JSON object")

    def __post_init__(self) -> None:
        parse_interval(self.checkpoint_every)
        require(self.log_every > 0, f"--log-every {self.log_every}: give a positive number of seconds")
        for name, value in (("warning", self.stall_warning), ("end", self.stall_end)):
            require(0 <= value < inf, f"--stall-{name} {value}: give seconds, or 0 for never")


def parse_interval(text: str) -> tuple[float, str]:
    """``"500"`` is (500, "updates"), ``"30s"`` (30, "seconds"), ``"10m"`` (600, "seconds")."""
    unit = {"s": 1.0, "m": 60.0}.get(text[-1:])
    try:
        amount = float(text[:-1]) * unit if unit else float(int(text))
    except ValueError:
        amount = 0.0
    require(
        0 < amount < float("inf"),
        f"--checkpoint-every {shown(text)}: give updates (500), seconds (30s) or minutes (10m)",
    )
    return amount, "seconds" if unit else "updates"
