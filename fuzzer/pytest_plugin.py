"""Stored crashes as pytest items, and the honest verdict for a user's own tests.

Every `crash.yaml` that pytest comes across is collected as one item, named by the crash's id and marked by its label,
its class, its backend and `xbfuzz`; a suite without crash folders notices nothing. An item replays the crash in worker
processes, so a backend that dies fails that item and never pytest. Nothing heavy is imported before an item runs.
"""

from __future__ import annotations

import contextlib
import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from fuzzer.errors import XbfuzzError

if TYPE_CHECKING:
    from fuzzer.crashes.crash import Crash
    from fuzzer.crashes.replay import Replayed

RECORD = "crash.yaml"
_PROPERTY = "xbfuzz"
#: The first line of a `crash.yaml`: a file of that name that somebody else made is none of ours.
_MOST = 4 * 2**20
_FIRST_LINE = re.compile(rb"format: \d+\s")


class Otherwise(Exception):
    """A crash did not do what is expected of it."""

    def __init__(self, crash: Crash, result: Replayed) -> None:
        self.crash = crash
        self.result = result
        super().__init__(result.sentence)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("xbfuzz", "crashes stored by xbfuzz")
    group.addoption(
        "--xbfuzz-backends",
        metavar="PATTERNS",
        default="",
        help="replay only crashes whose target fits one of these (onnxruntime:*,inductor:cpu); also what "
        "xbfuzz_agree compares where a test names no backends",
    )
    group.addoption(
        "--xbfuzz-trust", action="store_true", help="run Python code that a crash's seed imports from elsewhere"
    )
    group.addoption(
        "--xbfuzz-plugin",
        metavar="MODULE_OR_FILE",
        action="append",
        default=[],
        help="import this before a crash is replayed: it brings backends or tasks of your own; repeatable",
    )
    group.addoption(
        "--xbfuzz-strict",
        action="store_true",
        help="fail on a crash that is gone or changed even where other versions or another processor ran it",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "xbfuzz: a stored crash that is replayed")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Nothing else in a crash folder is collected: its Python files are data until someone chooses to run them."""
    inside = collection_path.name != RECORD and collection_path.is_file()
    return True if inside and _is_record(collection_path.parent / RECORD) else None


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> CrashFile | None:
    if file_path.name != RECORD or not _is_record(file_path):
        return None
    return CrashFile.from_parent(parent, path=file_path)


def _is_record(path: Path) -> bool:
    try:
        with open(path, "rb") as stream:
            return _FIRST_LINE.match(stream.read(64)) is not None
    except OSError:
        return False


class CrashFile(pytest.File):
    """A `crash.yaml`. Read here only for its marks; the item checks it as strictly as replay does."""

    def collect(self) -> Iterator[CrashItem]:
        about: Any = {}
        # a damaged file fails as an item, with replay's own words
        with contextlib.suppress(yaml.YAMLError, OSError, ValueError, RecursionError), open(self.path, "rb") as stream:
            about = yaml.safe_load(stream.read(_MOST))
        fields = about if isinstance(about, dict) else {}
        label, target = (_text(fields.get(name)) for name in ("label", "target"))
        item: CrashItem = CrashItem.from_parent(self, name=self.path.parent.name)
        item.target = re.split("[?@]", target, maxsplit=1)[0]
        for mark in ("xbfuzz", *_marks(label, item.target)):
            if mark != "xbfuzz":
                self.config.addinivalue_line("markers", f"{mark}: crashes of that label or backend")
            item.add_marker(mark)
        yield item


def _text(value: Any) -> str:
    """Text as it is; anything else in its place may be endless."""
    return value if isinstance(value, str) else ""


def _marks(label: str, target: str) -> list[str]:
    """`numeric`, `numeric/nonfinite`, `onnxruntime`, `onnxruntime-cpu`: words that `-m` takes."""
    cls, _, cause = label.removesuffix("?").partition("/")
    runtime, _, device = target.partition(":")
    words = [cls, f"{cls}/{cause}", runtime, f"{runtime}-{device}"]
    return [word for word in words if re.fullmatch(r"[a-z][\w/-]*", word)]


class CrashItem(pytest.Item):
    """One crash. Passes where it does what its `expect` says; skips where a backend cannot run here."""

    target = ""

    def runtest(self) -> None:
        from fuzzer.crashes.replay import CrashState, replay
        from fuzzer.crashes.store import load_crash
        from fuzzer.crashes.trust import needs_trust
        from fuzzer.place import cache_folder, surroundings

        _load_plugins(self.config)
        crash = load_crash(self.path.parent)
        foreign = None if self.config.getoption("xbfuzz_trust") else needs_trust(crash, self.config.rootpath)
        if foreign is not None:
            raise XbfuzzError(f"{crash.id}: {foreign}; --xbfuzz-trust allows it")
        result = replay(crash, surroundings(cache_folder()))
        elsewhere = f" [{'; '.join(result.differs)}]" if result.differs else ""
        if result.differs or not result.ok:
            self.user_properties.append((_PROPERTY, f"{crash.id}: {result.sentence}{elsewhere}"))
        if result.state is CrashState.UNAVAILABLE:
            pytest.skip(result.detail)
        if result.ok:
            return
        if result.differs and result.expected == "diverges" and not self.config.getoption("xbfuzz_strict"):
            pytest.skip(f"recorded elsewhere: {result.sentence}{elsewhere}")
        raise Otherwise(crash, result)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """What the crash is, what became of it, and what to do: no traceback of ours."""
        error = excinfo.value
        if isinstance(error, Otherwise):
            return "\n".join(_words(error.crash, error.result))
        if isinstance(error, XbfuzzError):
            return str(error)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, f"crash {self.name}"


def _load_plugins(config: pytest.Config) -> None:
    """At the first need, because it imports torch. Raises PluginError, one line."""
    from fuzzer.plugins import load_plugins

    load_plugins(config.getoption("xbfuzz_plugin"))


def _words(crash: Crash, result: Replayed) -> Iterator[str]:
    from fuzzer.triage import blame_sentence

    yield f"{crash.id}: {result.sentence}"
    yield f"recorded: {crash.target} and {crash.reference} differ at {crash.leaf} ({crash.kind}), {crash.label}"
    yield from (f"  {line}" for line in crash.evidence)
    yield f"  {blame_sentence(crash)}"
    seen = result.examined.verdict.differences if result.examined is not None else []
    if seen:
        yield "now:"
        yield from (f"  {difference.path}: {difference.message}" for difference in seen[:5])
    yield f"attempts that showed it: {result.reproduced} of {result.attempts}"
    yield from (f"recorded elsewhere: {line}" for line in result.differs)
    if result.state == "fixed":
        yield f"to keep it as a guard against its return: xbfuzz replay --update {crash.folder}"
    else:
        yield f"to see it: xbfuzz replay {crash.folder}"


def _patterns(config: pytest.Config) -> list[str]:
    return [word for word in str(config.getoption("xbfuzz_backends")).split(",") if word]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    patterns = _patterns(config)
    if not patterns:
        return
    others = [
        item
        for item in items
        if isinstance(item, CrashItem) and not any(fnmatch.fnmatchcase(item.target, pattern) for pattern in patterns)
    ]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What ran on other versions or another processor than recorded, and what did not do as expected."""
    lines = [text for reports in terminalreporter.stats.values() for text in _noted(reports)]
    if lines:
        terminalreporter.section("crashes that are not as recorded")
        for line in dict.fromkeys(lines):
            terminalreporter.write_line(line)


def _noted(reports: Iterable[Any]) -> Iterator[str]:
    for report in reports:
        if getattr(report, "when", None) == "call":
            yield from (str(text) for name, text in report.user_properties if name == _PROPERTY)


@pytest.fixture
def xbfuzz_agree(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`fuzzer.assert_agree`, with the backends of `--xbfuzz-backends`; skips where one cannot run here."""
    from fuzzer.agree import BACKENDS, Unavailable, assert_agree

    chosen = [text for text in _patterns(request.config) if "*" not in text]

    try:
        _load_plugins(request.config)
    except XbfuzzError as error:
        pytest.fail(str(error), pytrace=False)

    def agree(model: Any, inputs: Any, backends: Iterable[str] | None = None, **options: Any) -> Any:
        named = list(backends) if backends is not None else chosen
        try:
            return assert_agree(model, inputs, named or BACKENDS, **options)
        except Unavailable as error:
            pytest.skip(str(error))

    return agree
