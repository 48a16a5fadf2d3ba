"""The HTML report: one file that says what the crashes say, and that a real browser shows without a complaint."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest
import torch
from chromium import CHROMIUM, Page, chromium
from crash_samples import builder_seed, pool_crash
from hypothesis import given
from hypothesis import strategies as st

from fuzzer.crashes.crash import Crash
from fuzzer.crashes.signature import Signature
from fuzzer.diagnose import Label
from fuzzer.errors import XbfuzzError
from fuzzer.triage.charts import drift_histogram, drift_of, growth_curves, tolerance_sweep
from fuzzer.triage.known import KnownIssue, KnownIssues
from fuzzer.triage.passes import Cell, add_up, read_passes
from fuzzer.triage.pictures import pictures
from fuzzer.triage.report import Matrix, report
from fuzzer.triage.sweep import LEVELS, gap_of, sweep

URL = "https://example.org/issues/1"
#: Two charts of all crashes and one of the layers, the same of the crash that has layers, and three panels of boxes.
CHARTS = 7
EVIL = "<script>document.title = 'broken'</script>"


BOXES = {
    "reference": [[20, 20, 40, 40, 0.8, 2, 0], [0, 0, 10, 10, 0.9, 1, 1]],
    "target": [[0, 0, 10, 10, 0.9, 1, 1]],
    "float64": [[20, 20, 40, 40, 0.8, 2, 1], [0, 0, 10, 10, 0.9, 1, 1]],
}
TARGETS = [
    {"seed": "one", "backend": "onnxruntime:cpu", "status": "ok", "reason": "", "executions": 1001}
    | {"outcomes": {"pass": 999, "mismatch": 1, "not-compared": 1}},
    {"seed": "one", "backend": "inductor:cuda", "status": "unavailable", "reason": "no <CUDA>", "executions": 0}
    | {"outcomes": {}},
]


def named(crash: Crash, seed: str, target: str, label: str, severity: str, **fields: Any) -> Crash:
    signature = Signature(seed, target, "numeric", "$", "nonfinite")
    return replace(crash, signature=signature, target=target, label=Label.parse(label), severity=severity, **fields)


@pytest.fixture(scope="module")
def crashes(tmp_path_factory: pytest.TempPathFactory) -> list[Crash]:
    folder = tmp_path_factory.mktemp("report")
    crash = pool_crash(builder_seed(folder / "seeds"), environment={"torch": "2.14.1"})
    points = [{"name": str(i), "module": "Conv2d", "gap": 0.1 * 10**i, "origin": i == 2} for i in range(6)]
    activations = {"status": "fail", "sentence": "drift starts at 2 (Conv2d)", "points": points}
    boxes = {**crash.verdict, "task": {"sentence": "1 missing", "boxes": [BOXES]}}
    return [
        named(crash, "one", "onnxruntime:cpu", "numeric/nonfinite?", "wrong", evidence=(EVIL,)),
        named(crash, "two", "inductor:cpu", "numeric/nonfinite", "wrong", activations=activations),
        named(crash, "three", "onnxruntime:cpu", "order/tie?", "decision", blame="neither", verdict=boxes),
        named(crash, "four", "onnxruntime:cpu", "execution/crash", "crash", status="reported", link=URL),
    ]


@pytest.fixture(scope="module")
def page(crashes: list[Crash], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    known = KnownIssues([KnownIssue(pattern={"label": "order/*"}, url=URL, note="ties")])
    path.write_text(report(crashes, known, made="today", passes=add_up([{"targets": TARGETS}])), encoding="utf-8")
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
    nothing = [{"drift_target": None, "kind": "value"}]
    bare = replace(crashes[0], verdict={**crashes[0].verdict, "stats": [], "differences": nothing})
    assert drift_histogram([bare]) == tolerance_sweep(sweep([bare])) == growth_curves({}) == ""
    assert growth_curves({"x": [{"gap": 1.0}]}) == "", "a single value is no curve"
    assert drift_of(crashes[0]) == 3.1e4
    assert drift_of(replace(bare, verdict={"differences": [{"drift_target": "inf"}]})) == float("inf")
    infinite = replace(bare, verdict={"differences": [{"drift_target": "inf", "drift_reference": "nan"}]})
    assert "<svg" in drift_histogram([infinite, *crashes])


def differing(crash: Crash, kind: str, gap: float, largest: float | None) -> Crash:
    stats = [{"path": "$", "max_abs": gap} | ({} if largest is None else {"largest": largest})]
    difference = {**crash.difference, "kind": kind}
    return replace(crash, verdict={**crash.verdict, "differences": [difference], "stats": stats})


def test_a_sweep_counts_what_each_tolerance_would_see(crashes: list[Crash]) -> None:
    """2e-3 apart at a size of 100: 1e-3 of it is excused by the relative tolerance, so 1e-3 sees it not any more."""
    cases = [("value", 2e-3, 100.0), ("value", 5e-7, 0.0), ("nonfinite", 0.0, 1.0), ("value", 1.0, None)]
    found = sweep(differing(crashes[0], *case) for case in cases)
    assert dict(zip(found.levels, found.seen, strict=True)) == {
        1e-8: 3, 1e-7: 3, 1e-6: 2, 1e-5: 2, 1e-4: 2, 1e-3: 1, 1e-2: 1, 1e-1: 1
    }  # fmt: skip
    assert (found.known, found.unknown, found.always) == (3, 1, 1)


@given(st.lists(st.tuples(st.floats(0, 1e30), st.floats(0, 1e30)), max_size=5))
def test_a_wider_tolerance_never_sees_more(crashes: list[Crash], gaps: list[tuple[float, float]]) -> None:
    found = sweep(differing(crashes[0], "value", gap, largest) for gap, largest in gaps)
    assert list(found.seen) == sorted(found.seen, reverse=True)
    by_hand = [sum(gap - 1e-5 * largest > level for gap, largest in gaps) for level in LEVELS]
    assert list(found.seen) == by_hand


def test_a_gap_that_no_statistics_tell_is_not_known(crashes: list[Crash]) -> None:
    assert gap_of(differing(crashes[0], "value", 0.5, None)) is None
    assert gap_of(differing(crashes[0], "shape", 0.5, None)) == float("inf")


def test_passes_of_several_runs_add_up_and_what_never_ran_says_why(tmp_path: Path) -> None:
    for name, targets in {"1": TARGETS, "2": TARGETS[:1]}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "stats.json").write_text(json.dumps({"targets": targets, "more": 1}))
    (tmp_path / "killed").mkdir()
    found = read_passes(tmp_path)
    ran, silent = found.cells[("one", "onnxruntime:cpu")], found.cells[("one", "inductor:cuda")]
    assert (found.runs, found.executions, ran.compared, ran.outcomes["pass"]) == (2, 2002, 2000, 1998)
    assert (ran.words, silent.words, silent.reason) == ("99.9 %", "unavailable", "no <CUDA>")
    assert silent.share is None


@pytest.mark.parametrize(("passed", "words"), [(10_000, "100 %"), (9_999, "99.9 %"), (0, "0.0 %")])
def test_only_what_always_passed_is_100_percent(passed: int, words: str) -> None:
    cell = Cell(10_000)
    cell.outcomes.update({"pass": passed, "vacuous": 10_000 - passed})
    assert cell.words == words


def test_a_target_with_nothing_to_compare_has_no_share() -> None:
    cell = Cell(3, status="ok")
    cell.outcomes["not-compared"] = 3
    assert (cell.share, cell.words) == (None, "nothing compared")


@pytest.mark.parametrize("text", ["{", '{"targets": [{"seed": 1}]}', '{"targets": 3}', "[]"])
def test_what_is_no_statistics_is_named_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "stats.json").write_text(text)
    with pytest.raises(XbfuzzError, match=r"run/stats\.json: no statistics of a run: .+") as error:
        read_passes(tmp_path)
    assert "\n" not in str(error.value)


def test_the_page_says_how_often_each_model_passed_and_what_could_not_run(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "99.9 %<small>n = 1,000</small>" in text
    assert "inductor:cuda, unavailable: no &lt;CUDA&gt;" in text


def test_boxes_are_drawn_for_each_side_with_those_in_dispute_named(crashes: list[Crash]) -> None:
    (panels,) = pictures(crashes[2])
    assert [panel.caption for panel in panels] == [
        "eager:cpu: 2 boxes, 1 in dispute",
        "onnxruntime:cpu: 1 box",
        "float64: 2 boxes",
    ]
    assert "0.8 class 2" in panels[0].svg
    assert "class" not in panels[1].svg, "what both sides have carries no text"
    assert [panel.svg.count("<rect") for panel in panels] == [3, 2, 3], "the frame, and a rectangle a box"


def test_boxes_lie_on_the_image_that_was_detected_in(crashes: list[Crash]) -> None:
    seed = {"inputs": {"image": {"kind": "image", "shape": [3, 24, 48]}}}
    crash = replace(crashes[2], seed=seed, inputs={"image": torch.full((3, 24, 48), float("nan"))})
    (panels,) = pictures(crash)
    assert all('href="data:image/jpeg;base64,' in panel.svg for panel in panels)
    assert 'width="48" height="24"' in panels[0].svg


ROWS = st.one_of(
    st.lists(st.one_of(st.floats(), st.integers(), st.text(), st.none()), max_size=9),
    st.text(),
    st.none(),
    st.lists(st.floats(allow_nan=False, width=32), min_size=7, max_size=7),
)
SIDES = st.dictionaries(st.sampled_from(["reference", "target", "float64"]), st.one_of(st.lists(ROWS), st.text()))


@given(st.one_of(st.lists(st.one_of(SIDES, st.text())), st.text(), st.none()))
def test_whatever_a_record_has_for_boxes_is_drawn_or_left_out(crashes: list[Crash], boxes: object) -> None:
    crash = replace(crashes[0], verdict={**crashes[0].verdict, "task": {"boxes": boxes}})
    for panels in pictures(crash):
        for panel in panels:
            assert "nan" not in panel.svg
            assert "inf" not in panel.svg
            assert panel.svg.count("<") == panel.svg.count(">")


def test_charts_take_their_colours_from_the_page_and_share_no_ids(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    charts = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(charts) == CHARTS
    for chart in charts:
        assert "var(--" in chart
        assert "#0102" not in chart


in_browser = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    with chromium(tmp_path_factory.mktemp("chromium")) as found:
        yield found


#: The crashes that a reader sees, by seed.
SHOWN = """Array.from(document.querySelectorAll(".crash")).filter(c => c.getClientRects().length > 0)
  .map(c => c.dataset.seed)"""


@in_browser
@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ({}, ["four", "two", "one", "three"]),
        ({"severity": "wrong"}, ["two", "one"]),
        ({"label": "numeric/nonfinite", "target": "onnxruntime:cpu"}, ["one"]),
        ({"target": "inductor:cpu", "severity": "crash"}, []),
        ({"seed": "three"}, ["three"]),
        ({"status": "reported"}, ["four"]),
        ({"status": "known"}, ["three"]),
        ({"status": "open"}, ["two", "one"]),
        ({"text": "CONV2D"}, ["two"]),
        ({"severity": "no such"}, ["four", "two", "one", "three"]),
    ],
)
def test_filters_in_the_address_show_what_fits_and_count_it(
    page: Path, browser: Page, filters: dict[str, str], names: list[str]
) -> None:
    browser.show(page.as_uri() + (f"#{urlencode(filters)}" if filters else ""))
    assert browser.run(SHOWN) == names
    assert browser.run("document.getElementById('count').textContent") == f"{len(names)} of 4 crashes"
    assert browser.run("document.title") == "xbfuzz: 4 crashes", "text from a crash was run"
    assert browser.complaints == []


@in_browser
def test_a_choice_of_a_reader_filters_and_goes_into_the_address(page: Path, browser: Page) -> None:
    browser.show(page.as_uri())
    choose = "const s = document.querySelector('select[name=%s]'); s.value = '%s'; %s"
    tell = "s.dispatchEvent(new Event('input', {bubbles: true}))"
    browser.run("{" + choose % ("target", "onnxruntime:cpu", tell) + "}")
    browser.run("{" + choose % ("severity", "wrong", tell) + "}")
    assert browser.run(SHOWN) == ["one"]
    assert dict(parse_qsl(browser.run("location.hash.slice(1)"))) == {"target": "onnxruntime:cpu", "severity": "wrong"}
    browser.run("document.querySelector('button[type=reset]').click()")
    assert browser.run(f"new Promise(done => setTimeout(() => done({SHOWN}), 50))") == ["four", "two", "one", "three"]
    assert browser.complaints == []


@in_browser
def test_a_cell_of_a_matrix_leads_to_its_crashes_and_an_id_opens_one(
    page: Path, browser: Page, crashes: list[Crash]
) -> None:
    browser.show(page.as_uri())
    browser.run("""document.querySelector('a[href*="label=order"]').click()""")
    assert browser.run(f"new Promise(done => setTimeout(() => done({SHOWN}), 50))") == ["three"]
    browser.show(f"{page.as_uri()}#id={crashes[0].id}")
    assert browser.run("Array.from(document.querySelectorAll('details[open]'), d => d.dataset.seed)") == ["one"]


@in_browser
def test_a_complaint_of_the_browser_would_be_noticed(page: Path, browser: Page) -> None:
    broken = page.with_name("broken.html")
    broken.write_text(page.read_text(encoding="utf-8").replace("fromAddress(false)", "nowhere()"), encoding="utf-8")
    browser.show(broken.as_uri())
    assert any("nowhere" in line for line in browser.complaints)


#: What a reader with that window would see: is anything wider than the window, is all that is drawn there to see.
MEASURE = """[innerWidth, document.documentElement.scrollWidth,
  Array.from(document.querySelectorAll("svg"), s => s.getBoundingClientRect())
    .every(r => r.height > 50 && r.width > 90),
  document.querySelectorAll("svg").length]"""


@in_browser
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_a_phone_and_a_desk(page: Path, browser: Page, width: int, dark: bool) -> None:
    browser.show(page.as_uri(), width=width, dark=dark)
    browser.run("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert browser.run(MEASURE) == [width, width, True, CHARTS]
    assert browser.run("matchMedia('(prefers-color-scheme: dark)').matches") is dark
    ink, paper = browser.run("[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]")
    light = [sum(map(int, re.findall(r"\d+", colour))) for colour in (ink, paper)]
    assert (light[0] > light[1]) is dark
    assert browser.complaints == []
