"""Pages as a browser shows them: nothing is cut off without a hint, and nothing is complained of, on paper too."""

import contextlib
import os
import shutil

import pytest
import scanned_training
from campaign_stores import fill, toy_plan

from fault_injection.commands.main import main
from fault_injection.faults.injection import Injection
from fault_injection.faults.injection_file import format_injection
from fault_injection.questions.spread.campaign_page import rewrite_campaign_map_page
from fault_injection.workloads.registry import make_workload

pytestmark = pytest.mark.slow
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser: pip install playwright")

WIDTHS = (390, 800, 1200, 1920)
PAPER = 1032  # pixels between the margins of A4 on its side
# What is cut off, or goes over the page, in words; empty where all is well.
LOOK = r"""(paper) => {
  const wrong = [], say = (what, of) => wrong.push(what + ": " + of.outerHTML.slice(0, 90));
  const whole = document.documentElement;
  if (whole.scrollWidth > innerWidth + 1) say("the page is wider than the window", whole);
  for (const one of document.querySelectorAll("body *")) {
    if (!one.getClientRects().length || one.closest("svg")) continue;
    const style = getComputedStyle(one), box = one.getBoundingClientRect();
    const over = one.scrollWidth > one.clientWidth + 1 || one.scrollHeight > one.clientHeight + 1;
    if (style.display === "inline" || !one.clientWidth) continue;
    if (one.classList.contains("scroll") && !paper) {
      const more = one.parentElement.querySelector(".more");
      if (one.scrollWidth > one.clientWidth + 1 && getComputedStyle(more).visibility !== "visible")
        say("no hint at what is beside", one);
      if (one.scrollHeight > one.clientHeight + 1) say("cut off below", one);
    } else if (over && one.tagName !== "INPUT" && one.tagName !== "HTML") {
      say("content is larger than its element", one);
    }
    if (!one.closest(".scroll") && (box.left < -1 || box.right > innerWidth + 1)) say("beside the window", one);
  }
  for (const svg of document.querySelectorAll("figure svg")) {
    const box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width;
    for (const text of svg.querySelectorAll("text")) {
      const at = text.getBoundingClientRect(), by = 4;  // what is there of a line above and below letters
      if (at.left < box.left - by || at.right > box.right + by || at.top < box.top - by || at.bottom > box.bottom + by)
        say("text beyond its figure: " + text.textContent.trim(), text);
      const level = one => !/rotate\((?!-?0[) ])/.test(one.getAttribute("transform") || "");
      for (const other of svg.querySelectorAll("text")) {
        if (other === text || !level(text) || !level(other)) continue;
        const by = other.getBoundingClientRect();
        const wide = Math.min(at.right, by.right) - Math.max(at.left, by.left);
        const high = Math.min(at.bottom, by.bottom) - Math.max(at.top, by.top);
        if (wide > 3 && high > at.height / 2) say("text hides text: " + text.textContent.trim(), other);
      }
      if (!paper && parseFloat(getComputedStyle(text).fontSize) * scale < 8) say("too small to read", text);
    }
  }
  return wrong;
}"""


@pytest.fixture(scope="module")
def browser():
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("there is no chromium: apt-get install chromium, or say where it is in $CHROMIUM")
    with sync_api.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory, results):
    """A page of each kind, by its name."""
    folder = tmp_path_factory.mktemp("pages")
    one, other = (fill(folder / name, toy_plan(120)) for name in ("a_campaign_with_a_rather_long_name", "another"))
    for name in ("latent", "fault_free"):
        for kept in ("campaign.sqlite", "score.sqlite"):
            (folder / name).mkdir(exist_ok=True)
            shutil.copy(results / name / kept, folder / name)
    (folder / "pvf").mkdir()
    shutil.copy(results / "pvf" / "resnet18" / "rates.json", folder / "pvf")
    asked = [["report", one, other, "--out", folder / "compared"], ["report", one, "--fleet", "devices=1024"]]
    asked += [["report", folder / name] for name in (one.name, "latent", "fault_free", "pvf")]
    training = make_workload(f"{scanned_training.__file__}:training")
    fault = Injection(training, "fwrd_inject", "RD", 0, "forward:up", 0, 1, ((2, 0, 0),), (50.0,))
    (folder / "fault.csv").write_text(format_injection(fault))
    cache = folder / "cache"
    asked.append(["map", folder / "fault.csv", "--steps", "8", "--out", folder / "map", "--cache", cache])
    for words in asked:
        assert main([str(word) for word in words]) == 0
    (folder / "spread").mkdir()
    shutil.copy(results / "campaign" / "map" / "map.json", folder / "spread")
    rewrite_campaign_map_page(folder / "spread")
    return {
        "campaign": folder / "latent" / "report.html",
        "small campaign": one / "report.html",
        "comparison": folder / "compared" / "comparison.html",
        "score": folder / "latent" / "score.html",
        "fault-free": folder / "fault_free" / "score.html",
        "pvf": folder / "pvf" / "pvf.html",
        "fleet": one / "fleet.html",
        "map": folder / "map" / "map.html",
        "campaign's map": folder / "spread" / "map.html",
    }


KINDS = ("campaign", "small campaign", "comparison", "score", "fault-free", "pvf", "fleet", "map", "campaign's map")


@contextlib.contextmanager
def shown(browser, path, width, **how):
    """A page in a window, every fold open; what the browser complains of fails the test."""
    said: list[str] = []
    page = browser.new_page(viewport={"width": width, "height": 900}, **how)
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url) if not request.url.startswith("file:") else None)
    try:
        page.goto(path.as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        page.wait_for_timeout(100)  # the hints follow a resize
        yield page
    finally:
        page.close()
    assert said == []


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_cut_off_without_a_hint(browser, pages, kind):
    for width in WIDTHS:
        with shown(browser, pages[kind], width) as page:
            assert page.evaluate(LOOK, False) == [], width


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_cut_off_on_paper(browser, pages, kind):
    with shown(browser, pages[kind], PAPER) as page:
        page.emulate_media(media="print")
        assert page.evaluate(LOOK, True) == []
        assert page.pdf().startswith(b"%PDF")


@pytest.mark.parametrize(
    ("wrong", "seen"),
    [
        (".overflows .more { visibility: hidden }", "no hint at what is beside"),
        ("h1 { white-space: nowrap; overflow: hidden }", "content is larger than its element"),
        (".summary { width: 40rem }", "beside the window"),
        ("figure svg { width: 100px }", "too small to read"),
        ("figure svg text { font-size: 60px }", "text hides text"),
        (".scroll { height: 3rem }", "cut off below"),
    ],
)
def test_the_look_sees_what_is_cut_off(browser, pages, wrong, seen):
    with shown(browser, pages["small campaign"], 390) as page:
        page.add_style_tag(content=wrong)
        assert any(one.startswith(seen) for one in page.evaluate(LOOK, False))


def test_a_table_is_sorted_filtered_and_copied(browser, pages):
    with shown(browser, pages["campaign"], 1200) as page:
        table = page.locator("#models .wide")
        cells = table.locator("tbody tr td:nth-child(3)")
        numbers = [float(text.split(" %")[0]) for text in cells.all_inner_texts()]
        assert len(numbers) > 3
        head = table.locator("thead th").nth(2)
        head.click()
        assert [float(text.split(" %")[0]) for text in cells.all_inner_texts()] == sorted(numbers)
        head.click()
        assert [float(text.split(" %")[0]) for text in cells.all_inner_texts()] == sorted(numbers, reverse=True)
        rows = page.locator("#outcomes .wide")
        rows.locator("input").fill("slow")
        assert rows.locator("tbody tr:visible").count() == 2  # SlowDegrade, SharpSlowDegrade
        keep = "{value: {writeText: async text => { window.got = text }}}"
        page.evaluate(f"Object.defineProperty(navigator, 'clipboard', {keep})")
        rows.locator("button").click()
        copied = page.evaluate("window.got").splitlines()
        assert copied[0] == '"outcome","experiments","share"' and len(copied) == 3


def test_the_first_column_stays_where_a_table_is_scrolled(browser, pages):
    with shown(browser, pages["score"], 390) as page:
        scroll = page.locator("#table .scroll").first
        before = scroll.locator("tbody th").first.bounding_box()["x"]
        scroll.evaluate("one => { one.scrollLeft = 200; }")
        page.wait_for_timeout(100)
        assert scroll.locator("tbody th").first.bounding_box()["x"] == before


def test_a_point_tells_its_experiment_and_a_click_gives_the_command(browser, pages):
    with shown(browser, pages["campaign"], 1200) as page:
        points = page.locator("#necessary svg [data-experiment]")
        point = points.first
        number = point.get_attribute("data-experiment")
        assert point.locator("title").evaluate("one => one.textContent").startswith(f"experiment {number}: ")
        point.dispatch_event("click")
        said = page.locator("dialog[open]").inner_text()
        assert f"Experiment {number}" in said and f"--id {number}" in said
        page.locator("dialog[open] button", has_text="close").click()
        page.locator("#worst tbody button").first.click()
        assert page.locator("dialog[open] svg polyline").count() == 1


def test_a_map_is_played_step_after_step(browser, pages):
    with shown(browser, pages["map"], 1200) as page:
        first = page.locator("#map svg").first.locator("g.step")
        last = int(page.locator(".play output").inner_text())
        assert first.count() == last + 1 > 4
        page.locator(".play input").fill("0")
        dimmed = first.evaluate_all("all => all.map(one => +getComputedStyle(one).opacity < .5)")
        assert dimmed == [False] + [True] * last
        page.locator(".play button").click()
        page.wait_for_function(f"document.querySelector('.play output').value === '{last}'")


def test_a_page_in_the_dark_has_no_dark_text(browser, pages):
    with shown(browser, pages["campaign"], 800, color_scheme="dark") as page:
        for what in ("body", "figure svg text", "table td"):
            name = "fill" if "svg" in what else "color"
            colour = page.locator(what).first.evaluate(f"one => getComputedStyle(one).{name}")
            assert min(int(x) for x in colour.removeprefix("rgb(").rstrip(")").split(",")[:3]) > 150, what
