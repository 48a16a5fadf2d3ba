"""How fast is the stage of a fault found? `python -m benchmarks.stage [--json]`, beside PyTorch's CompilerBisector.

The fault is PyTorch's own: Inductor's generated code for relu, with `cpp.inject_relu_bug_TESTING_ONLY` set to
`accuracy`, in an MLP of three layers. Both searches start from nothing compiled, each in a process and with caches of
its own, and end with the stage and the operator.

Wall and processor seconds are told for each part: `probes`, by which Inductor asks the C++ compiler, once a machine,
for its vector instructions; `first`, which shows that there is a fault; `search`, which finds its stage. Processor
seconds count the compilers that were started.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import click
import torch
from torch import Tensor, nn

from benchmarks.controls import machine, versions
from benchmarks.local import RNG_SEED, named, seed_for
from benchmarks.local_rerun import LocalReruns
from fuzzer.diagnose import provisional
from fuzzer.diagnose.engine import diagnose
from fuzzer.diagnose.finding import Finding

#: Seconds after which a search is given up.
PATIENCE_S = 900.0


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Linear(8, 16), nn.Sigmoid(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4), nn.Tanh()
        )

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.layers(x)
        return answer


def given() -> Tensor:
    return torch.rand(4, 8, generator=torch.Generator().manual_seed(1))


def inject() -> None:
    """Make Inductor's relu wrong in this process."""
    import torch._inductor.config as config

    config.cpp.inject_relu_bug_TESTING_ONLY = "accuracy"


class Clock:
    """Wall and processor seconds of the parts of a search, one after the other."""

    def __init__(self) -> None:
        self.parts: dict[str, dict[str, float]] = {}
        self._wall, self._processor = time.perf_counter(), _processor()

    def ends(self, part: str) -> None:
        """What was done since the last call, or since the start, was this part."""
        wall, processor = time.perf_counter(), _processor()
        self.parts[part] = {"wall": round(wall - self._wall, 2), "processor": round(processor - self._processor, 2)}
        self._wall, self._processor = wall, processor

    @property
    def told(self) -> dict[str, Any]:
        """The parts, and their sums."""
        total = {kind: round(sum(part[kind] for part in self.parts.values()), 2) for kind in ("wall", "processor")}
        return {"seconds": {**self.parts, "total": total}}


def _processor() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def probe() -> None:
    """Have Inductor find out, by compiling, which vector instructions there are. It remembers them in its cache."""
    from torch._inductor.cpu_vec_isa import valid_vec_isa_list

    valid_vec_isa_list()


def by_ladder() -> dict[str, Any]:
    """What the diagnosis finds."""
    inject()
    clock = Clock()
    probe()
    clock.ends("probes")
    sample = named((given(),))
    rerun = LocalReruns(seed_for((given(),)), "eager:cpu", "inductor:cpu", Mlp, sample)
    examined = rerun(sample)
    clock.ends("first")
    truth = None if examined.oracle is None else examined.oracle.truth
    leaves = examined.reference.leaves, examined.target.leaves
    symptom = provisional(examined.verdict, *leaves, truth, sample, "inductor:cpu")
    finding = Finding(sample, examined, symptom.label, "inductor:cpu", sample, RNG_SEED)
    counted = _Counted(rerun)
    found = diagnose(finding, counted, clock=time.perf_counter, budget_s=300.0, mitigate=False)
    clock.ends("search")
    return {
        "label": str(found.label),
        "stage": found.stage,
        "operator": found.operator,
        "calls": counted.calls,
        **clock.told,
        "evidence": found.evidence,
    }


class _Counted:
    """Reruns that count themselves."""

    def __init__(self, rerun: LocalReruns) -> None:
        self._rerun = rerun
        self.calls = 0

    @property
    def evidence(self) -> Any:
        return self._rerun.evidence

    def __call__(self, *args: Any, **how: Any) -> Any:
        self.calls += 1
        return self._rerun(*args, **how)

    def seconds(self, *args: Any) -> float | None:
        return self._rerun.seconds(*args)


def by_bisector() -> dict[str, Any]:
    """PyTorch's own bisection, on the same model, input and fault."""
    from torch._inductor.compiler_bisector import CompilerBisector

    inject()
    calls = 0

    def good() -> bool:
        nonlocal calls
        calls += 1
        torch._dynamo.reset()
        module = Mlp().eval()
        backend = CompilerBisector.get_backend() or "inductor"
        with torch.no_grad():
            return torch.allclose(torch.compile(module, backend=backend)(given()), module(given()), atol=1e-5)

    clock = Clock()
    probe()
    clock.ends("probes")
    found = CompilerBisector.do_bisect(good)
    clock.ends("search")  # its first compilation is one of its calls
    return {
        "backend": getattr(found, "backend", None),
        "subsystem": getattr(found, "subsystem", None),
        "debug_info": str(getattr(found, "debug_info", ""))[:200],
        "calls": calls,
        **clock.told,
    }


_SEARCHES = {"ladder": by_ladder, "bisector": by_bisector}


def searched(which: str) -> dict[str, Any]:
    """One search in a process and with caches of its own."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        command = [sys.executable, "-m", "benchmarks.stage", "--only", which]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
            )
        except subprocess.TimeoutExpired:
            return {"failed": f"gave no answer within {PATIENCE_S:g} s"}
    if done.returncode != 0:
        return {"failed": (done.stderr.strip().splitlines() or ["no words"])[-1][:300]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@click.command()
@click.option("--json", "as_json", is_flag=True)
@click.option("--only", type=click.Choice(list(_SEARCHES)), help="Run one search here, with the caches that there are.")
def main(as_json: bool, only: str | None) -> None:
    """Find the stage of Inductor's injected relu fault in two ways."""
    torch.set_num_threads(1)
    if only is not None:
        click.echo(json.dumps(_SEARCHES[only]()))
        return
    found: dict[str, Any] = {name: searched(name) for name in _SEARCHES}
    found |= {"machine": machine(), "versions": versions(), "load": [round(x, 1) for x in os.getloadavg()]}
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    for name in _SEARCHES:
        click.echo(f"{name}: {found[name]}")


if __name__ == "__main__":
    main()
