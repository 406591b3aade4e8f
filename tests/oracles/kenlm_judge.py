"""KenLM as a judge of ARPA files, in a process of its own, since some damaged files crash it."""

import atexit
import json
import subprocess
import sys
from pathlib import Path
from typing import Any


class Judge:
    """Starts when it is first asked, and anew after a crash."""

    def __init__(self) -> None:
        self.worker: subprocess.Popen[str] | None = None
        atexit.register(self.close)

    def close(self) -> None:
        """End the process."""
        if self.worker is not None:
            self.worker.kill()
            self.worker.wait()
        self.worker = None

    def ask(self, path: Path, *sentences: str) -> dict[str, Any]:
        """``order`` and ``scores`` (per sentence, log10 of each word and of the end), or ``refusal``."""
        if self.worker is None:
            self.worker = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
            )
        assert self.worker.stdin and self.worker.stdout
        self.worker.stdin.write(json.dumps([str(path), sentences]) + "\n")
        self.worker.stdin.flush()
        answer = self.worker.stdout.readline()
        if not answer:
            self.close()
            return {"refusal": "crash"}
        found: dict[str, Any] = json.loads(answer)
        return found


def work() -> None:
    """Answer questions from standard input."""
    import kenlm

    quiet = kenlm.Config()
    quiet.show_progress, quiet.arpa_complain = False, kenlm.ARPALoadComplain.NONE
    for line in sys.stdin:
        path, sentences = json.loads(line)
        try:
            model = kenlm.Model(path, quiet)
        except OSError as refusal:
            answer: dict[str, Any] = {"refusal": str(refusal)}
        else:
            scores = [[score for score, _, _ in model.full_scores(text)] for text in sentences]
            answer = {"order": model.order, "scores": scores}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    work()
