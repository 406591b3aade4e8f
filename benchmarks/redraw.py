"""Draw the figures in a folder of results again, from the numbers beside them; nothing is measured.

python -m benchmarks.redraw benchmarks/results
"""

import argparse
import importlib
import json
from pathlib import Path

# Modules of this folder that draw what stands in NAME.json into NAME.png.
DRAWN = (
    *("ablation", "balance", "collectives", "growth", "kernels", "scaling", "settings", "shared"),
    *("slow_network", "throughput"),
)


def main() -> None:
    """Draw what there is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="with NAME.json, from which NAME.png is drawn")
    folder = parser.parse_args().folder
    for name in DRAWN:
        path = folder / f"{name}.json"
        if path.exists():
            rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
            importlib.import_module(f"benchmarks.{name}").draw(rows, path.with_suffix(".png"))
            print(path.with_suffix(".png"))
    if (folder / "table1.json").exists():
        from nplm_mpi.reproduce.report import draw

        for picture in draw(folder, json.loads((folder / "table1.json").read_text(encoding="utf-8"))):
            print(picture)


if __name__ == "__main__":
    main()
