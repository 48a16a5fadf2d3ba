"""The errors a user may see: each is one clear line that says what to do."""

from __future__ import annotations

from collections.abc import Sequence


class XbfuzzError(Exception):
    """Something a user can put right; the command line prints it as one line and exits 2."""


class SeedError(XbfuzzError):
    """A seed file that does not hold together.

    `problems` lists every fault found, one line each, with file and key path.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


class ModelError(XbfuzzError):
    """A model that cannot be built or whose weights do not fit."""


class InputError(XbfuzzError):
    """Inputs that cannot be generated or read."""


class SpecError(XbfuzzError):
    """A backend string that names no backend, or an option that backend does not have."""


class PluginError(XbfuzzError):
    """A plug-in that the user named and that cannot be loaded."""


class CrashFolderError(XbfuzzError):
    """A crash folder that is damaged or that asks for more trust than it was given."""


class Unsupported(Exception):
    """A backend refuses a model: export, lowering or compilation failed.

    Not a fault of the user's: recorded as the status of that target. `stage` names the step that refused.
    """

    def __init__(self, reason: str, *, stage: str) -> None:
        self.reason = reason
        self.stage = stage
        super().__init__(f"{stage}: {reason}")
