"""The HTML report: one file that says what the crashes say, and that a real browser shows without a complaint."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from crash_samples import builder_seed, pool_crash

from fuzzer.crashes.crash import Crash
from fuzzer.crashes.signature import Signature
from fuzzer.diagnose import Label
from fuzzer.triage.charts import drift_histogram, drift_of, growth_curves, tolerance_sweep
from fuzzer.triage.known import KnownIssue, KnownIssues
from fuzzer.triage.report import Matrix, report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
URL = "https://example.org/issues/1"
EVIL = "<script>document.title = 'broken'</script>"


def named(crash: Crash, seed: str, target: str, label: str, severity: str, **fields: Any) -> Crash:
    signature = Signature(seed, target, "numeric", "$", "nonfinite")
    return replace(crash, signature=signature, target=target, label=Label.parse(label), severity=severity, **fields)


@pytest.fixture(scope="module")
def crashes(tmp_path_factory: pytest.TempPathFactory) -> list[Crash]:
    folder = tmp_path_factory.mktemp("report")
    crash = pool_crash(builder_seed(folder / "seeds"), environment={"torch": "2.14.1"})
    points = [{"name": str(i), "module": "Conv2d", "gap": 0.1 * 10**i, "origin": i == 2} for i in range(6)]
    activations = {"status": "fail", "sentence": "drift starts at 2 (Conv2d)", "points": points}
    verdict = {**crash.verdict, "stats": [{"path": "$", "norm_ok": {"1e-6": False, "1e-3": True}}]}
    return [
        named(crash, "one", "onnxruntime:cpu", "numeric/nonfinite?", "wrong", evidence=(EVIL,)),
        named(crash, "two", "inductor:cpu", "numeric/nonfinite", "wrong", activations=activations, verdict=verdict),
        named(crash, "three", "onnxruntime:cpu", "order/tie?", "decision", blame="neither"),
        named(crash, "four", "onnxruntime:cpu", "execution/crash", "crash", status="reported", link=URL),
    ]


@pytest.fixture(scope="module")
def page(crashes: list[Crash], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    known = KnownIssues([KnownIssue(pattern={"label": "order/*"}, url=URL, note="ties")])
    path.write_text(report(crashes, known, made="today"), encoding="utf-8")
    return path


def test_a_matrix_counts_labels_on_targets_most_frequent_first(crashes: list[Crash]) -> None:
    found = Matrix.of(crashes)
    assert found.labels == ["numeric/nonfinite", "execution/crash", "order/tie"]
    assert found.targets == ["onnxruntime:cpu", "inductor:cpu"]
    assert found.counts[("numeric/nonfinite", "inductor:cpu")] == 1
    assert ("order/tie", "inductor:cpu") not in found.counts


def test_the_same_crashes_give_the_same_file(crashes: list[Crash]) -> None:
    assert report(crashes, made="today") == report(list(reversed(crashes)), made="today")


def test_the_file_needs_no_other_and_its_markup_is_closed(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"""(?:src|href)=["'](?!#|https://example\.org)""", text.replace('xlink:href="#', ""))
    open_tags: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag not in ("meta", "br", "input"):
                open_tags.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert open_tags.pop() == tag

    Reader().feed(text)
    assert open_tags == []


def test_what_a_crash_says_is_text_and_never_markup(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert EVIL not in text
    assert "&lt;script&gt;document.title" in text


def test_each_crash_has_evidence_blame_and_the_command_that_repeats_it(page: Path, crashes: list[Crash]) -> None:
    text = page.read_text(encoding="utf-8")
    for crash in crashes:
        part = text.partition(f'data-id="{crash.id}"')[2].partition("</details>")[0]
        assert f"xbfuzz replay crashes/{crash.id}" in part
        assert "NaN on the reference, 5.0 on the target" in part
        assert "noise floors from float64" in part
    assert f'href="{URL}"' in text
    assert "known: ties" in text


def test_no_crashes_are_a_report_too() -> None:
    assert "There are no crashes." in report([], made="today")


def test_charts_are_drawn_only_from_what_was_measured(crashes: list[Crash]) -> None:
    bare = replace(crashes[0], verdict={**crashes[0].verdict, "stats": [], "differences": [{"drift_target": None}]})
    assert drift_histogram([bare]) == tolerance_sweep([bare]) == growth_curves({}) == ""
    assert growth_curves({"x": [{"gap": 1.0}]}) == "", "a single value is no curve"
    assert drift_of(crashes[0]) == 3.1e4
    assert drift_of(replace(bare, verdict={"differences": [{"drift_target": "inf"}]})) == float("inf")
    infinite = replace(bare, verdict={"differences": [{"drift_target": "inf", "drift_reference": "nan"}]})
    assert "<svg" in drift_histogram([infinite, *crashes])


def test_charts_take_their_colours_from_the_page_and_share_no_ids(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    charts = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(charts) == 4
    for chart in charts:
        assert "var(--ink)" in chart
        assert "#0102" not in chart


def browse(page: Path, *args: str, **filters: str) -> tuple[str, list[str]]:
    """What Chromium makes of the page, and what it says on its console."""
    assert CHROMIUM is not None
    address = page.as_uri() + (f"#{urlencode(filters)}" if filters else "")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += ["--enable-logging=stderr", f"--user-data-dir={page.parent / 'profile'}", *args, address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def shown(dom: str) -> list[str]:
    tags = re.findall(r'<details class="crash"[^>]*>', dom)
    return [re.search(r'data-id="(\w+?)-', tag)[1] for tag in tags if " hidden" not in tag]  # type: ignore[index]


in_browser = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


@in_browser
@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ({}, ["four", "two", "one", "three"]),
        ({"severity": "wrong"}, ["two", "one"]),
        ({"label": "numeric/nonfinite", "target": "onnxruntime:cpu"}, ["one"]),
        ({"target": "inductor:cpu", "severity": "crash"}, []),
        ({"text": "CONV2D"}, ["two"]),
        ({"severity": "no such"}, ["four", "two", "one", "three"]),
    ],
)
def test_filters_show_what_fits_and_count_it(page: Path, filters: dict[str, str], names: list[str]) -> None:
    dom, console = browse(page, "--dump-dom", **filters)
    assert shown(dom) == names
    assert f">{len(names)} of 4 crashes<" in dom
    assert console == []
    assert "<title>xbfuzz: 4 crashes</title>" in dom, "text from a crash was run"


@in_browser
def test_a_complaint_of_the_browser_would_be_noticed(page: Path) -> None:
    broken = page.with_name("broken.html")
    broken.write_text(page.read_text(encoding="utf-8").replace("fromAddress(false)", "nowhere()"), encoding="utf-8")
    _, console = browse(broken, "--dump-dom")
    assert any("nowhere" in line for line in console)


#: Puts into the title what a reader with that width would see: is the page wider than the window, is all drawn.
MEASURE = """<script>
document.title = [document.documentElement.scrollWidth <= innerWidth, document.querySelectorAll("svg").length,
  [...document.querySelectorAll("svg")].every(svg => svg.getBoundingClientRect().height > 50), innerWidth].join(" ");
</script></body>"""


@in_browser
@pytest.mark.parametrize("width", [500, 1280])
def test_the_page_fits_a_phone_and_a_desk(page: Path, width: int) -> None:
    text = page.read_text(encoding="utf-8").replace("<details ", "<details open ")
    measured = page.with_name(f"measured{width}.html")
    measured.write_text(text.replace("</body>", MEASURE), encoding="utf-8")
    dom, console = browse(measured, "--dump-dom", f"--window-size={width},900")
    assert console == []
    assert f"<title>true 4 true {width}</title>" in dom, re.findall("<title>.*</title>", dom)
