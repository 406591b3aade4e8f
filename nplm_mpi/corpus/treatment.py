"""The AP treatment of words (section 4): a rule that needs one word and the vocabulary, no more.

For AP News the paper maps upper case to lower case, numeric forms to special symbols and proper
nouns to a special symbol, and keeps punctuation. It does not say how. Here:

* Marks in angle brackets (``<p>``) stay as they are.
* Words with a digit become ``<number>`` (12, 1,250.75, $3.5, 40%), ``<ordinal>`` (22nd) or
  ``<numeral>`` (everything else that holds a digit: 1990s, 10:30, B-52).
* A capitalised word (its first letter is upper case) becomes its lower-case form if the
  vocabulary holds that, and ``<name>`` otherwise. So "The" is "the", "Clinton" is ``<name>``.
  When the vocabulary is built, a lower-case form counts as a word only if the text also writes
  it in lower case: words that come capitalised only are taken for proper nouns. "I" and words
  that begin "I'" are no proper nouns.
* Everything else is put in lower case.

Text that is scored later is treated by the same rule with the model's vocabulary.
"""

import re
import unicodedata
from dataclasses import dataclass
from typing import Self

from nplm_mpi.config.corpus import CorpusConfig

NUMBER, ORDINAL, NUMERAL, NAME = "<number>", "<ordinal>", "<numeral>", "<name>"
SYMBOLS = (NUMBER, ORDINAL, NUMERAL, NAME)

_DIGITS = r"(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)"
_NUMBER = re.compile(rf"[+-]?[$£€]?{_DIGITS}%?")
_ORDINAL = re.compile(r"\d+(?:,\d{3})*(?:st|nd|rd|th)", re.IGNORECASE)
_DIGIT = re.compile(r"\d")
_LETTER = re.compile(r"[^\W\d_]")


@dataclass(frozen=True)
class Treatment:
    """What is done to words of text before they are looked up.

    Attributes
    ----------
    kind : {"none", "ap"}
    lowercase : bool
        Put every word in lower case.
    normalize : {"none", "NFC"}
        Then compose its letters and accents.
    """

    kind: str = "none"
    lowercase: bool = False
    normalize: str = "none"

    @classmethod
    def of(cls, config: CorpusConfig) -> Self:
        """That of a corpus."""
        return cls(config.treatment, config.lowercase, config.normalize)

    def spell(self, word: str) -> str:
        """A word as it is spelled in the vocabulary, whatever it stands for."""
        word = word.lower() if self.lowercase else word
        return word if self.normalize == "none" else unicodedata.normalize("NFC", word)


PLAIN = Treatment()


def treat(word: str, treatment: Treatment | str = PLAIN) -> tuple[str, str | None]:
    """What a word of text stands for.

    Parameters
    ----------
    word : str
    treatment : Treatment, or "none" or "ap"

    Returns
    -------
    form : str
        The vocabulary entry to look for.
    otherwise : str or None
        The entry to take where ``form`` is unknown; None for the rare symbol.
    """
    treatment = Treatment(treatment) if isinstance(treatment, str) else treatment
    word = treatment.spell(word)
    if treatment.kind == "none" or (word.startswith("<") and word.endswith(">") and len(word) > 2):
        return word, None
    if _DIGIT.search(word):
        if _NUMBER.fullmatch(word):
            return NUMBER, None
        return (ORDINAL if _ORDINAL.fullmatch(word) else NUMERAL), None
    lower = word.lower()
    first = _LETTER.search(word)
    capitalised = first is not None and (first[0].isupper() or first[0].istitle())
    if capitalised and word != "I" and not word.startswith(("I'", "I’")):
        return lower, NAME
    return lower, None


def symbols(treatment: Treatment | str) -> tuple[str, ...]:
    """The special symbols that ``treatment`` writes; reserved in text."""
    kind = treatment if isinstance(treatment, str) else treatment.kind
    return SYMBOLS if kind == "ap" else ()
