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

NUMBER, ORDINAL, NUMERAL, NAME = "<number>", "<ordinal>", "<numeral>", "<name>"
SYMBOLS = (NUMBER, ORDINAL, NUMERAL, NAME)

_DIGITS = r"(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)"
_NUMBER = re.compile(rf"[+-]?[$£€]?{_DIGITS}%?")
_ORDINAL = re.compile(r"\d+(?:,\d{3})*(?:st|nd|rd|th)", re.IGNORECASE)
_DIGIT = re.compile(r"\d")
_LETTER = re.compile(r"[^\W\d_]")


def treat(word: str, treatment: str) -> tuple[str, str | None]:
    """What a word of text stands for.

    Parameters
    ----------
    word : str
    treatment : {"none", "ap"}

    Returns
    -------
    form : str
        The vocabulary entry to look for.
    otherwise : str or None
        The entry to take where ``form`` is unknown; None for the rare symbol.
    """
    if treatment == "none" or (word.startswith("<") and word.endswith(">") and len(word) > 2):
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


def symbols(treatment: str) -> tuple[str, ...]:
    """The special symbols that ``treatment`` writes; reserved in text."""
    return SYMBOLS if treatment == "ap" else ()
