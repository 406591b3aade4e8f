"""Lists of words become a text in a run's folder, where the run can be repeated and continued from."""

import filecmp
import os
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from nplm_mpi.base.errors import UserError
from nplm_mpi.base.files import replacing_text
from nplm_mpi.config.options import shown

SPACE = frozenset(" \t\n\r\v\f\0")


def paths_or_lines(text: Any, called: str) -> tuple[str, ...] | Iterator[Iterable[str]]:
    """Names of a corpus or of files, or lines of words.

    Parameters
    ----------
    text : str, path, list of these, or iterable of sequences of str
    called : str
        For messages.

    Raises
    ------
    UserError
        If it is none of these.
    """
    if isinstance(text, str | os.PathLike):
        return (name(text, called),)
    if not isinstance(text, Iterable):
        raise UserError(f"{called} is {shown(text)}: give names of files, or lists of words")
    items = iter(text)
    first = next(items, None)
    if first is None:
        raise UserError(f"{called} is empty: give names of files, or lists of words")
    if isinstance(first, str | os.PathLike):
        return tuple(name(item, called) for item in chain([first], items))
    return chain([first], items)


def name(item: Any, called: str) -> str:
    """A file's or corpus's name, which words of a line are hardly."""
    if not isinstance(item, str | os.PathLike):
        raise UserError(f"{called} holds names of files and {shown(item)}: give names or lists of words")
    path = os.fsdecode(os.fspath(item))
    if SPACE & set(path) and not os.path.lexists(path):
        raise UserError(
            f"{called}: there is no file {shown(path)}; a text that is not in a file is lists of words: "
            "[line.split() for line in lines]"
        )
    return path


def write_text(path: Path, lines: Iterable[Iterable[str]], called: str) -> None:
    """A line of text for each list of words; a file that is there already must hold the same.

    Raises
    ------
    UserError
        At a word that a text cannot hold, with its place.
    """
    there = path.exists()
    target = path.with_name(f"{path.name}.new") if there else path
    with replacing_text(target) as file:
        for number, words in enumerate(lines):
            file.write(" ".join(checked(words, f"{called}[{number}]")) + "\n")
    if not there:
        return
    same = filecmp.cmp(target, path, shallow=False)
    target.unlink()
    if not same:
        raise UserError(f"{called}: is another text than {path}, which the run was started with")


def checked(words: Any, called: str) -> list[str]:
    """The words of a line, each one that text can hold."""
    if isinstance(words, str | bytes) or not isinstance(words, Iterable):
        raise UserError(f"{called} is {shown(words)}: give a list of words")
    words = list(words)
    for place, word in enumerate(words):
        where = f"{called}[{place}]"
        if not isinstance(word, str):
            raise UserError(f"{where} is {shown(word)}: a word is a str")
        if not word or not SPACE.isdisjoint(word):
            raise UserError(f"{where} is {shown(word)}: a word is not empty and holds no white space")
        try:
            word.encode("utf-8")
        except UnicodeEncodeError:
            raise UserError(f"{where} is {shown(word)}: it cannot be written as UTF-8") from None
    return words
