"""The Brown corpus as NLTK distributes it, read as the stream of section 4.

A text's file holds "word/tag" tokens, a sentence per line, blank lines between paragraphs. A word
is everything before the last slash. As a stream the corpus gets the paper's marks: ``<text>``
before each text and ``<p>`` before each further paragraph of a text; texts come in alphabetical
order. As sentences it has a sentence per line and no marks.
"""

import hashlib
import os
import re
import sys
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from nplm_mpi.base.errors import UserError
from nplm_mpi.base.files import one_line, replacing
from nplm_mpi.base.places import Place
from nplm_mpi.corpus.text import LF, Block, check_text

TEXT_MARK, PARAGRAPH_MARK = b"<text>", b"<p>"
PAPER_SPLIT = ("800000", "200000", "rest")
URL = "https://raw.githubusercontent.com/nltk/nltk_data/gh-pages/packages/corpora/brown.zip"
SHA256 = "9b275f9b3b95d7bd66ccfb7cd259f445a13bbe5d1f4107aba09fd3e8364bafa6"

_TEXT_NAME = re.compile(r"(?:.*/)?(c[a-r]\d\d)")


def nltk_folders() -> list[Path]:
    """Where NLTK looks for its data, in its order, and ``./nltk_data`` after ``$NLTK_DATA``."""
    named = [Path(folder) for folder in os.environ.get("NLTK_DATA", "").split(os.pathsep) if folder]
    prefix = Path(sys.prefix)
    return [
        *named,
        Path("nltk_data"),
        Path(os.path.expanduser("~/nltk_data")),
        *(prefix / folder for folder in ("nltk_data", "share/nltk_data", "lib/nltk_data")),
        *(
            Path(folder) / "nltk_data"
            for folder in ("/usr/share", "/usr/local/share", "/usr/lib", "/usr/local/lib")
        ),
    ]


def find_brown(caches: Sequence[Place]) -> Path:
    """The corpus's zip file or unpacked folder, downloaded if it is nowhere.

    Parameters
    ----------
    caches : sequence of Place
        Have ``nltk_data`` folders of our own, searched last; the first that can be written takes a download.

    Raises
    ------
    UserError
        If it is absent and cannot be downloaded; says what to put where.
    """
    trusted = [place.path / "nltk_data" for place in caches if not place.distrusted()]
    for folder in [*nltk_folders(), *trusted]:
        for place in (
            folder / "corpora" / "brown",
            folder / "corpora" / "brown.zip",
            folder,
            folder / "brown.zip",
        ):
            if looks_like_brown(place):
                return place
    return download(caches)


def looks_like_brown(path: Path) -> bool:
    """Whether ``path`` is a folder with files named as Brown's texts, or ``brown.zip``."""
    try:
        if path.is_dir():
            return any(_TEXT_NAME.fullmatch(name) for name in os.listdir(path))
        return path.name == "brown.zip" and path.is_file()
    except OSError:
        return False


def download(caches: Sequence[Place]) -> Path:
    """Fetch NLTK's zip, checked by its SHA-256, into the first of some places that can be written."""
    advice = (
        f"put NLTK's brown.zip ({URL}) into a folder corpora/ of one of the folders in $NLTK_DATA, "
        f"or into {Path('nltk_data/corpora').absolute()}"
    )
    try:
        with urllib.request.urlopen(URL, timeout=60) as response:
            data = response.read()
    except (urllib.error.URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise UserError(
            f"--corpus brown: not found where NLTK looks, and the download failed ({reason}); {advice}"
        ) from error
    if hashlib.sha256(data).hexdigest() != SHA256:
        raise UserError(
            f"--corpus brown: what {URL} delivered has another SHA-256 than the corpus ({SHA256}); {advice}"
        )
    problems = []
    for place in caches:
        target = place.path / "nltk_data" / "corpora" / "brown.zip"
        try:
            place.make()
            target.parent.mkdir(parents=True, exist_ok=True)
            with replacing(target) as fresh:
                fresh.write(data)
            return target
        except OSError as error:
            problems.append(f"cannot write {target}: {one_line(error)}")
    raise UserError(f"--corpus brown: {'; '.join(problems)}; {advice}")


def brown_files(path: Path) -> list[Path]:
    """The files that :func:`read_brown` reads: the zip, or the texts of a folder."""
    if path.is_dir():
        return [path / name for name in sorted(os.listdir(path)) if _TEXT_NAME.fullmatch(name)]
    return [path]


def read_brown(path: Path, sentences: bool) -> Iterator[Block]:
    """One block per text, words only: a stream with marks or a sentence per line.

    Raises
    ------
    UserError
        For a damaged zip, a token without a tag, or bytes that are not UTF-8.
    """
    for name, data in read_texts(path):
        check_text(data, name, 1, 0)
        lines = []
        in_paragraph, paragraphs = False, 0
        for number, line in enumerate(data.split(LF), start=1):
            words = [token.rpartition(b"/")[0] for token in line.split()]
            if not all(words):
                token = line.split()[words.index(b"")].decode()
                raise UserError(
                    f"{name}, line {number}: {token!r} is not word/tag; this is not the Brown corpus"
                )
            begins, in_paragraph = bool(words) and not in_paragraph, bool(words)
            if begins:
                # On the same line, so that line numbers in messages stay right.
                words = words if sentences else [PARAGRAPH_MARK if paragraphs else TEXT_MARK, *words]
                paragraphs += 1
            lines.append(b" ".join(words))
        yield Block(LF.join(lines) + LF, name, 1)


def read_texts(path: Path) -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of each text in alphabetical order."""
    if path.is_dir():
        for file in brown_files(path):
            try:
                data = file.read_bytes()
            except OSError as error:
                raise UserError(f"{file}: cannot be read: {error.strerror}") from error
            yield str(file), data
        return
    try:
        with zipfile.ZipFile(path) as archive:
            members = sorted(
                (match[1], name) for name in archive.namelist() if (match := _TEXT_NAME.fullmatch(name))
            )
            if not members:
                raise UserError(f"{path}: holds no texts named ca01 ... cr09; this is not the Brown corpus")
            for _, name in members:
                yield f"{path}/{name}", archive.read(name)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise UserError(
            f"{path}: damaged zip file ({error}); delete it or fetch it again from {URL}"
        ) from error
