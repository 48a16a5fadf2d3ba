"""Cases of the table that other versions of PyTorch answer otherwise than the one it was written with."""

from __future__ import annotations

from benchmarks.known_cases import INDUCTOR, Case, Kind

#: Case and target → the first version seen (major, minor) that does as the table says. 2.11 was seen to do otherwise:
#: its Inductor gives the argmax in the order of memory, not of the transposed tensor (pytorch#183082), and does not yet
#: take x + 0 for x. What lies between was not tried.
SINCE: dict[tuple[str, str], tuple[int, int]] = {
    ("argmax_of_a_transpose", INDUCTOR): (2, 14),
    ("reciprocal_of_zero_sum", INDUCTOR): (2, 14),
}


def kind_on(case: Case, target: str, torch_version: str) -> Kind:
    """What is expected of a case on one target: before the change a control diverges, and a diverging case agrees.

    `torch_version` as `torch.__version__` has it.
    """
    since = SINCE.get((case.name, target))
    if since is None or tuple(int(part) for part in torch_version.split(".")[:2]) >= since:
        return case.kind
    return Kind.DIVERGES if case.kind is Kind.CONTROL else Kind.CONTROL
