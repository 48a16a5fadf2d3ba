"""Another Python interpreter with packages of its own, in which a worker can run.

The two need only agree on the worker's protocol: no pickles and no import path pass between them. What is shared is the
code of this package alone, loaded from its folder by name, so that none of the packages beside it come along. The other
interpreter must be Python 3.11 or newer and have the packages that xbfuzz needs; xbfuzz itself need not be installed.
"""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

#: The folder of this package, the only code that both interpreters share.
PACKAGE = Path(__file__).resolve().parent.parent
#: Seconds that the other interpreter has to import its packages.
PATIENCE_S = 120.0

_LOAD = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("fuzzer", {init!r}, submodule_search_locations=[{folder!r}])
sys.modules["fuzzer"] = package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
"""
_WORK = """
from fuzzer.worker import main
main()
"""
_TELL = """
import json
from fuzzer.backends.registry import availability, parse
from fuzzer.crashes.environment import environment
from fuzzer.errors import SpecError
from fuzzer.plugins import load_backends
missing = load_backends()
try:
    reason = availability(parse(sys.argv[1]))
except SpecError as error:
    reason = "; ".join([str(error), *missing])
print(json.dumps({"reason": reason, "environment": environment()}))
"""


def worker_command(python: str) -> tuple[str, ...]:
    """The command line of a worker under that interpreter."""
    return _command(python, _WORK)


def availability_there(python: str, backend: str) -> str | None:
    """Why `backend` (a string without interpreter) cannot run under that interpreter, or None where it can."""
    return _told(python, backend)[0]


def environment_there(python: str) -> dict[str, Any]:
    """The versions and the machine as that interpreter sees them; empty where it cannot say."""
    return dict(_told(python, "eager:cpu")[1])


@functools.cache
def _told(python: str, backend: str) -> tuple[str | None, dict[str, Any]]:
    program = shutil.which(str(Path(python).expanduser()))
    if program is None:
        return f"there is no program {python}", {}
    try:
        done = subprocess.run(
            [*_command(python, _TELL), backend], capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{python} did not answer within {PATIENCE_S:.0f} s", {}
    except OSError as error:
        return f"{python} cannot be run: {error.strerror or error}", {}
    lines = done.stderr.strip().splitlines()
    if done.returncode != 0:
        return f"{python} cannot run xbfuzz: {lines[-1][:300] if lines else f'it exits with {done.returncode}'}", {}
    try:
        told = json.loads(done.stdout.splitlines()[-1])
        return told["reason"], told["environment"]
    except (ValueError, KeyError, IndexError, TypeError):
        return f"{python} does not answer as a Python interpreter", {}


def _command(python: str, code: str) -> tuple[str, ...]:
    """Runs `code` with this package loaded. Variables that point at our own packages are taken from it."""
    load = _LOAD.format(init=str(PACKAGE / "__init__.py"), folder=str(PACKAGE))
    hidden = ("-u", "PYTHONPATH", "-u", "PYTHONHOME", "-u", "VIRTUAL_ENV")
    return ("env", *hidden, str(Path(python).expanduser()), "-c", load + code)
