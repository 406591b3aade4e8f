"""What has to be the same on all ranks, and how a difference is told."""

from collections.abc import Mapping, Sequence

# Facts of one rank by name, as "numpy": "2.4.6".
Facts = Mapping[str, str]
# So much of a value is shown.
SHOWN = 120


def difference(facts: Sequence[Facts], hosts: Sequence[str]) -> str:
    """In what the ranks differ, in a few words; empty if in nothing.

    Parameters
    ----------
    facts : one for each rank
    hosts : names of the ranks' machines

    Returns
    -------
    str
        As in "numpy is 2.3.1 on rank 1 (h2) and 2.4.6 on rank 0 (h1)".
    """
    told = []
    for name in dict.fromkeys(name for found in facts for name in found):
        ranks_of: dict[str, list[int]] = {}
        for rank, found in enumerate(facts):
            ranks_of.setdefault(found.get(name, "not known"), []).append(rank)
        if len(ranks_of) > 1:
            # what is rare first: it is what has to be mended
            groups = sorted(ranks_of.items(), key=lambda group: len(group[1]))
            shown = short(list(ranks_of))
            told.append(f"{name} is " + " and ".join(f"{shown[v]} on {who(r, hosts)}" for v, r in groups))
    return "; ".join(told)


def who(ranks: Sequence[int], hosts: Sequence[str]) -> str:
    """Ascending ranks and their machines, as in "ranks 20-39 (h2)"."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    shown = [f"{a}" if a == b else f"{a}-{b}" for a, b in spans[:4]] + ["..."] * (len(spans) > 4)
    machines = list(dict.fromkeys(hosts[rank] for rank in ranks))
    where = ", ".join(machines[:4]) + (", ..." if len(machines) > 4 else "")
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(shown)} ({where})"


def short(values: Sequence[str]) -> dict[str, str]:
    """For each value what is to be shown of it: of long ones the words in which they differ."""
    if max(map(len, values)) <= SHOWN:
        return {value: value for value in values}
    every = [value.split() for value in values]
    before = after = 0
    while all(len(words) > before and words[before] == every[0][before] for words in every):
        before += 1
    while all(len(words) > before + after and words[-1 - after] == every[0][-1 - after] for words in every):
        after += 1
    before = max(0, before - 1)  # a word more, as in "--batch 4"
    middle = [words[before : len(words) - after] for words in every]
    if max(len(" ".join(words)) for words in middle) > SHOWN:
        common = set.intersection(*map(set, middle))
        middle = [[word for word in words if word not in common] for words in middle]
    told = [" ".join(words) or "without these" for words in middle]
    return {
        v: f"... {t} ..." if len(t) <= SHOWN else f"... {t[:SHOWN]} ..."
        for v, t in zip(values, told, strict=True)
    }
