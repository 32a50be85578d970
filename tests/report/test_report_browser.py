"""The page in a real browser: it draws, its controls work, nothing is fetched, no text is markup.

Needs the Python package playwright and a Chromium, its own or one on PATH.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_runs import HOSTILE, LABELS, LINK, METRIC, SCRIPT, change_config, classifier

from bertjax.report import build, page

pytestmark = pytest.mark.long
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DRAWN = "document.querySelectorAll('.main-svg').length >= 6 && document.querySelector('svg.lines')"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        own = Path(playwright.chromium.executable_path)
        path = str(own) if own.exists() else next(filter(None, map(shutil.which, NAMES)), None)
        if path is None:
            pytest.skip("there is no Chromium: playwright install chromium, or a system's own")
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs whose names, texts, labels, metrics and summaries are hostile."""
    pytest.importorskip("plotly")
    folder = tmp_path_factory.mktemp("runs")
    first = classifier(folder / "<img src=x onerror=window.hacked=1>")
    second = classifier(folder / "second", seed=1)
    change_config(second, data__seq_length=77)
    data, weights = build.build([str(first), str(second)], None)
    file = folder / "report.html"
    file.write_bytes(page.render(data, weights, page.plotly_source()).encode())
    return file


@pytest.fixture
def seen() -> dict[str, list[str]]:
    return {"requests": [], "errors": [], "dialogs": []}


@pytest.fixture
def shown(browser, report, seen) -> Iterator[Any]:
    """The page, drawn. After each test: no request has left, no error and no dialog was met."""
    tab = browser.new_page(viewport={"width": 1200, "height": 900})
    tab.set_default_timeout(60_000)
    tab.on("request", lambda request: seen["requests"].append(request.url))
    tab.on("pageerror", lambda error: seen["errors"].append(str(error)))
    tab.on("console", lambda m: seen["errors"].append(m.text) if m.type == "error" else None)
    tab.on("dialog", lambda dialog: (seen["dialogs"].append(dialog.message), dialog.dismiss()))
    tab.goto(report.as_uri())
    tab.wait_for_function(DRAWN)
    yield tab
    assert [
        url for url in seen["requests"] if not url.startswith(("file:", "data:", "blob:"))
    ] == []
    assert seen["errors"] == [] and seen["dialogs"] == []
    tab.close()


def axis(tab: Any, name: str) -> str:
    return tab.evaluate(f"document.getElementById('curve-chart')._fullLayout.{name}")


def test_nothing_of_the_data_becomes_markup(shown, seen):
    found = shown.evaluate(
        """() => ({
            hacked: window.hacked ?? null,
            elements: document.querySelectorAll(
                'img, iframe, object, embed, main b, main script, svg a').length,
            images: [...document.querySelectorAll('image')].map((i) => i.href.baseVal.slice(0, 5)),
            links: [...document.querySelectorAll('[href]')].map((a) => a.getAttribute('href')),
            scripts: document.querySelectorAll('script').length,
        })"""
    )
    assert found["hacked"] is None and found["elements"] == 0
    assert all(link.startswith(("#", "data:")) for link in found["links"])
    assert set(found["images"]) == {"data:"}  # of the heat map
    # Data, two runs' weights, plotly packed and unpacked, and our own script.
    assert found["scripts"] == 6
    text = shown.inner_text("main")
    assert SCRIPT in text and LINK in text
    assert "<img src=x onerror=window.hacked=1>" in shown.inner_text("#subtitle")
    assert len(seen["requests"]) == 1


def test_chinese_and_emoji_are_shown(shown):
    text = shown.inner_text("#examples")
    assert "首都 is 中国 的 world" in text and HOSTILE[4] in text
    shown.select_option("#attention select[aria-label='Text']", index=1)
    assert "中国" in shown.inner_text("#overview") or "中" in shown.inner_text("#examples")


def test_metric_scale_and_smoothing_change_the_curves(shown):
    assert (
        axis(shown, "yaxis.title.text") == "loss (nats)" and axis(shown, "yaxis.type") == "linear"
    )
    traces = "document.getElementById('curve-chart').data.map((t) => t.y)"
    assert shown.evaluate(traces)[0] == [pytest.approx(4 / step, rel=1e-5) for step in range(1, 21)]
    assert len(shown.evaluate(traces)) == 4  # two runs, two splits
    shown.select_option("#curves select[aria-label='Scale']", "log")
    shown.wait_for_function(
        "document.getElementById('curve-chart')._fullLayout.yaxis.type == 'log'"
    )
    slider = shown.locator("#curves input[type=range]")
    slider.fill("0.5")
    shown.wait_for_function("document.getElementById('curve-chart').data.length == 6")
    smooth = shown.evaluate(traces)[1]
    # Bias-corrected moving average of 4, 2: (0.25 * 4 + 0.5 * 2) / 0.75.
    assert smooth[:2] == [pytest.approx(4), pytest.approx(8 / 3)]
    shown.select_option("#curves select[aria-label='Metric']", METRIC)
    title = (
        "document.getElementById('curve-chart')._fullLayout.yaxis.title.text.includes('&lt;img')"
    )
    shown.wait_for_function(title)
    shown.locator("button.spark", has_text="accuracy").click()
    shown.wait_for_function(
        "document.getElementById('curve-chart')._fullLayout.yaxis.title.text == 'accuracy'"
    )


def test_config_differences_and_figures(shown):
    keys = shown.locator("#config > .scroll td.key").all_inner_texts()
    assert set(keys) >= {"data.seq_length", "seed"} and "model.num_layers" not in keys
    heads = shown.locator("#config > .scroll th").all_inner_texts()
    assert heads == ["key", "<img src=x onerror=window.hacked=1>", "second"]
    assert "0.75" in shown.inner_text("#figures")


def test_wrong_examples_and_the_confusion_matrix(shown):
    marks = shown.locator("#examples table.long td:first-child")
    assert marks.count() == 12 and marks.nth(0).inner_text() == "✗ wrong"
    shown.select_option("#examples select[aria-label='Show']", "wrong")
    assert marks.count() == 3
    cells = shown.locator("#examples table.confusion td").all_inner_texts()
    assert sorted(map(int, cells)) == [0, 0, 0, 1, 1, 1, 3, 3, 3] and len(LABELS) == 3


def test_layer_head_and_hover_show_weights(shown):
    title = shown.locator("#attention h3")
    assert title.inner_text() == "Layer 1, head 1"
    shown.select_option("#attention select[aria-label='Layer']", index=1)
    shown.select_option("#attention select[aria-label='Head']", index=1)
    assert title.inner_text() == "Layer 2, head 2"
    shown.locator("#attention .grid canvas").click(position={"x": 40, "y": 30})
    assert title.inner_text() == "Layer 1, head 1"
    shown.locator("svg.lines .token").nth(1).hover()
    weights = [float(w) for w in shown.locator("svg.lines .weight").all_text_contents()]
    assert sum(weights) == pytest.approx(1, abs=0.01 * len(weights))
    visible = "[...document.querySelectorAll('svg.lines g line')].filter((l) => !l.style.display)"
    assert set(shown.evaluate(f"{visible}.map((l) => l.dataset.from)")) == {"1"}
    shown.mouse.move(2, 2)
    assert set(shown.locator("svg.lines .weight").all_text_contents()) == {""}
    lit = """() => { const c = document.querySelector('#attention .grid canvas');
        const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        return new Set(d).size; }"""
    assert shown.evaluate(lit) > 20  # a picture, not one colour


def test_the_run_can_be_changed(shown):
    shown.select_option("#attention select[aria-label='Run']", index=1)
    shown.wait_for_selector("svg.lines")
    shown.select_option("#vectors select[aria-label='Run']", index=1)
    shown.wait_for_function("document.querySelectorAll('#vectors .main-svg').length >= 4")
    points = "document.getElementById('map-chart').data.map((t) => t.x.length)"
    assert sum(shown.evaluate(points)) == 12
    names = shown.evaluate("document.getElementById('map-chart').data.map((t) => t.name)")
    assert len(names) == 3 and not any("<" in name for name in names)


def test_a_narrow_window_does_not_scroll_sideways(shown):
    shown.set_viewport_size({"width": 380, "height": 800})
    shown.wait_for_timeout(300)
    assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_dark_colours_follow_the_system(shown):
    shown.emulate_media(color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    assert shown.evaluate(background) == "rgb(20, 24, 30)"
    font = "document.getElementById('curve-chart')._fullLayout.font.color"
    shown.wait_for_function(f"{font} == '#e6eaef'")
