"""A replay as JUnit XML, which every CI system reads: one test case a crash."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

from fuzzer.crashes.replay import CrashState, Replayed

#: What XML 1.0 cannot hold, not even escaped.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(results: Sequence[Replayed], groups: Mapping[str, str]) -> str:
    """The document. `groups` gives each id the class name under which CI systems group it.

    A crash that did not do what it should is a failure, one that could not run here is skipped; how this machine
    differs from the one recorded is in the test case's output.
    """
    suite = ElementTree.Element(
        "testsuite",
        name="xbfuzz replay",
        tests=str(len(results)),
        failures=str(sum(not result.ok for result in results)),
        errors="0",
        skipped=str(sum(result.state is CrashState.UNAVAILABLE for result in results)),
        time=f"{sum(result.seconds for result in results):.3f}",
    )
    for result in results:
        _case(suite, result, groups.get(result.id, "crashes"))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _case(suite: ElementTree.Element, result: Replayed, group: str) -> None:
    case = ElementTree.SubElement(
        suite, "testcase", classname=_text(group), name=_text(result.id), time=f"{result.seconds:.3f}"
    )
    if result.state is CrashState.UNAVAILABLE:
        ElementTree.SubElement(case, "skipped", message=_text(result.detail))
    elif not result.ok:
        failure = ElementTree.SubElement(case, "failure", type=str(result.state), message=_text(result.sentence))
        failure.text = _text("\n".join([result.sentence, *(f"recorded elsewhere: {line}" for line in result.differs)]))
    lines = [result.sentence, *(f"recorded elsewhere: {line}" for line in result.differs)]
    ElementTree.SubElement(case, "system-out").text = _text("\n".join(lines))


def _text(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
