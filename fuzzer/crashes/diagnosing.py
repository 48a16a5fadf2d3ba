"""The diagnosis of a stored crash: its own input, run again with one thing changed, until a cause is proven."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from fuzzer.backends.session import Where
from fuzzer.crashes.crash import MAX_TEXT, Crash
from fuzzer.crashes.replay import diagnosed, signature_seen
from fuzzer.crashes.rerun import Reruns
from fuzzer.diagnose.engine import Diagnosed, diagnose
from fuzzer.diagnose.finding import Finding
from fuzzer.diagnose.rerun import CannotRerun

#: Seconds that the diagnosis of one crash may take.
BUDGET_S = 60.0


def diagnose_crash(
    crash: Crash,
    where: Where,
    *,
    budget_s: float = BUDGET_S,
    clock: Callable[[], float] = time.monotonic,
    mitigate: bool = True,
) -> tuple[Crash, Diagnosed]:
    """The crash with what reruns say of its cause, and the diagnosis. Writes nothing. Raises XbfuzzError.

    The crash is first seen once more; where it does not show its signature here, it is given back as it was.
    """
    rerun = Reruns(crash, where)
    try:
        examined = rerun(crash.inputs)
        if signature_seen(crash, examined) != crash.signature:
            return crash, Diagnosed(crash.label, detail="its own input does not show it here")
        before = diagnosed(crash, examined, reproduced=True)
        finding = Finding(crash.inputs, examined, before.label, crash.target, rerun.ordinary, crash.rng_seed)
        found = diagnose(finding, rerun, clock=clock, budget_s=budget_s, mitigate=mitigate)
    except CannotRerun as error:
        return crash, Diagnosed(crash.label, detail=str(error))
    finally:
        rerun.close()
    return with_diagnosis(crash, tuple(before.evidence), found), found


def with_diagnosis(crash: Crash, symptoms: tuple[str, ...], found: Diagnosed) -> Crash:
    """The crash with a diagnosis written into it; its signature, and so its id, stay."""
    evidence = tuple(text[:MAX_TEXT] for text in (*symptoms, *found.evidence))
    grave = crash.severity
    if found.label.cls == "order" and grave == "wrong":
        grave = "decision"
    return replace(
        crash,
        label=found.label,
        evidence=evidence,
        severity=grave,
        stage=found.stage,
        mitigations=tuple(one.to_json() for one in found.mitigations),
        diagnosis=found.to_json(),
    )
