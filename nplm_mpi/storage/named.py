"""Trained models that have a name: one that comes with the package, others to be fetched.

A list of them is JSON, an object for each name::

    {"demo": {"file": "demo.h5", "sha256": "5f...", "about": "..."},
     "mlp9": {"url": "https://.../mlp9.h5", "sha256": "0a...", "about": "..."}}

``file`` lies beside the list, ``url`` is fetched once and kept in the cache as ``models/NAME.h5``.  The
package's own list is ``named.json`` beside this module.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nplm_mpi.base import places
from nplm_mpi.base.errors import UserError
from nplm_mpi.base.files import BLOCK, one_line, replacing
from nplm_mpi.base.optional import needed
from nplm_mpi.base.reading import open_regular, read_small
from nplm_mpi.base.wording import printable
from nplm_mpi.config.options import unknown_name
from nplm_mpi.storage.saving import BEST

LIST = Path(__file__).with_name("named.json")
SECONDS = 60
"""How long a server may keep silent."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Named:
    """A model that a list names.

    Attributes
    ----------
    name, sha256, about : str
        The digest is that of the file.
    file : Path or None
        Where it lies if it came with the list.
    url : str
        Where it is fetched from; empty if it need not be.
    """

    name: str
    sha256: str
    about: str
    file: Path | None = None
    url: str = ""

    def found(self) -> Path | None:
        """Its file on this machine, if it is there."""
        return self.file if self.file is not None else kept(self.name)


def read_list(path: Path = LIST) -> dict[str, Named]:
    """The models that a list names.

    Raises
    ------
    UserError
        If there is no such list, or it is none.
    """
    try:
        entries = json.loads(read_small(path))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {one_line(error)}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a list of models: {error}") from error
    if not isinstance(entries, dict):
        raise UserError(f"{path}: not a list of models: an object of names is needed")
    return {name: _read_entry(path, name, entry) for name, entry in entries.items()}


def _read_entry(path: Path, name: str, entry: object) -> Named:
    where = f"{path}: {printable(name)!r}"
    if not _NAME.fullmatch(name):
        raise UserError(f"{where}: a name has letters, digits, - and _ only")
    texts = isinstance(entry, dict) and all(isinstance(value, str) for value in entry.values())
    if not isinstance(entry, dict) or not texts or ("file" in entry) == ("url" in entry):
        raise UserError(f"{where}: give an object with texts: file or url, sha256, about")
    unknown = sorted(set(entry) - {"file", "url", "sha256", "about"})
    if unknown:
        raise UserError(f"{where}: {unknown_name(unknown[0], ('file', 'url', 'sha256', 'about'), 'entry')}")
    if not _SHA256.fullmatch(entry.get("sha256", "")):
        raise UserError(f"{where}: sha256 is 64 hexadecimal digits in small letters")
    file = path.with_name(entry["file"]) if "file" in entry else None
    return Named(name, entry["sha256"], entry.get("about", ""), file, entry.get("url", ""))


def cache_places() -> list[places.Place]:
    """Where fetched models are kept, the first that can be written before the others."""
    return [*places.named(places.VARIABLE), *places.users()]


def kept(name: str) -> Path | None:
    """The file of a model that was fetched earlier, whatever list named it."""
    for place in cache_places():
        path = place.path / "models" / f"{name}.h5"
        if not place.distrusted() and path.is_file():
            return path
    return None


def model_file(path: str | os.PathLike) -> Path:
    """The file that is meant by a path or a name: a run's folder stands for its best model.

    What is there is a path.  Otherwise what can be a name, without a folder and a suffix, is one.  Not
    collective.

    Raises
    ------
    UserError
        If it is neither there nor known.
    """
    name = os.fspath(path)
    if os.path.isdir(path):
        return Path(path, BEST)
    if os.path.lexists(path) or not (isinstance(name, str) and _NAME.fullmatch(name)):
        return Path(path)
    models = read_list()
    found = models[name].found() if name in models else kept(name)
    if found is not None:
        return found
    if name in models:
        raise UserError(f"{name}: not on this machine yet; fetch it: nplm-mpi download {name}")
    near = unknown_name(name, models, "model").partition("; ")[2]
    raise UserError(f"{name}: no such file, and no model of this name; {near}")


def fetch(model: Named, out: Path | None = None) -> Path:
    """The file of a model; downloaded, and checked, where it is not on this machine.

    Parameters
    ----------
    model : Named
    out : Path, optional
        The file to write; by default one in the cache, or the one that came with the list.

    Raises
    ------
    UserError
        If pooch, which downloads, is not installed, the server cannot be reached or sends something
        else, or nothing can be written; what was there before stays.
    """
    found = model.found()
    if found is not None and digest(found) != model.sha256:
        if model.file is not None:
            raise UserError(f"{found}: damaged: its SHA-256 is not {model.sha256}; install the package anew")
        found = None
    if found is not None:
        return _put(found, [out]) if out else found
    targets = [out] if out else [place.path / "models" / f"{model.name}.h5" for place in _makeable()]
    pooch = needed("pooch", "pooch")
    pooch.get_logger().setLevel("ERROR")
    with tempfile.TemporaryDirectory() as folder:
        try:
            web = model.url.startswith(("http:", "https:"))
            downloader = pooch.HTTPDownloader(timeout=SECONDS) if web else None
            got = pooch.retrieve(
                model.url, f"sha256:{model.sha256}", "model.h5", folder, downloader=downloader
            )
        # requests, urllib3, ftplib and pooch have each their own.
        except (OSError, ValueError, RuntimeError) as error:
            reason = one_line(error)
            if isinstance(error, ValueError) and "hash" in reason:
                reason = f"what came has another SHA-256 than {model.sha256}"
            raise UserError(
                f"{model.name}: cannot fetch {model.url} ({reason}); fetch it by other means and put it at "
                f"{targets[0] if targets else 'a place of your own'}"
            ) from error
        return _put(Path(got), targets)


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {one_line(error)}") from error


def _makeable() -> list[places.Place]:
    """The places of the cache that could be made."""
    found = []
    for place in cache_places():
        with contextlib.suppress(OSError):
            place.make()
            found.append(place)
    return found


def _put(source: Path, targets: Sequence[Path]) -> Path:
    """Copy a file to the first of some places that can be written."""
    problems = []
    for target in targets:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(source, "rb") as file, replacing(target) as fresh:
                shutil.copyfileobj(file, fresh, BLOCK)
            return target
        except OSError as error:
            problems.append(f"{target}: cannot be written: {one_line(error)}")
    raise UserError(f"{'; '.join(problems) or 'no cache folder can be made'}; name a file with --out")
