"""The HTML page: what is in it, and how it behaves in a browser."""

from __future__ import annotations

import json
import re
import shutil

import pytest
from frames import rank_of, rounds_of, write_results

import prism_bench
from prism_bench.analysis.report.page import page
from prism_bench.harness.results import Results

NASTY = "</script><script>alert(1)</script><img src=http://example.com/x onerror=alert(2)> & 50%"

ROUNDS = rounds_of(
    ("fedavg", "1", 0, [70, 92]), ("fedavg", "1", 1, [70, 90]),
    ("prism", "0.2", 0, [60, 9]), ("prism", "0.2", 1, [60, 8]),
    ("orthdrop", "0.2", 0, [50, 85]), ("splitmix", "0.2", 0, [50, 100]),
)  # fmt: skip

ABOUT = {
    "description": f"by hand {NASTY}",
    "reference": "Table 7",
    "size": "scaled",
    "note": "3 clients (100)",
    "shows": ["accuracy", "drops", "costs", "time", "rank"],
    "settings": {"training": {"rounds": 2, "lr": 0.1}, "data": {"name": NASTY}},
    "environments": [{"torch": "2.9", "device": "cpu"}, {"torch": "2.9", "device": NASTY}],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rounds = ROUNDS.assign(variant=ROUNDS["algorithm"].map({"splitmix": NASTY}).fillna(""))
    paper = {"prism": {"paper_accuracy": 10.0, "paper_drop": -80.0, "paper_source": "Table 7"}}
    made = write_results(tmp_path_factory.mktemp("page") / "small", rounds, paper, missing=[NASTY], **ABOUT)
    rank_of().to_csv(made / "rank.csv", index=False)
    return made


def test_what_the_page_says(folder):
    text = page([Results.open(folder)])
    for words in (
        "<h2>small (scaled)</h2>", "Table 7", "3 clients (100)", "prism-bench run small", "6 of 7 done",
        "<h3>Accuracy</h3>", "<h3>Drop against full-model training</h3>", "<h3>Costs of a client</h3>",
        "<h3>Where the time goes</h3>", "<h3>Required kernels over the rounds</h3>", "Paired differences between",
        "training.lr", "<dt>torch</dt>", 'href="#experiment-1"', 'id="experiment-1"',
    ):  # fmt: skip
        assert words in text, words
    assert text.count("<figure>") == 5
    assert text.count("alert(1)") == text.count("&lt;script&gt;alert(1)"), "only as text"
    assert not re.search(r'(?:src|href)="(?!data:|#)', text), "nothing from elsewhere"


def test_the_same_results_give_the_same_page(folder):
    assert page([Results.open(folder)]) == page([Results.open(folder)])


def test_a_dozen_experiments_stay_small(tmp_path):
    """Each with curves of 24 runs and 300 rounds that jump about, which no picture likes."""
    cells = [(name, keep, seed) for name in ("prism", "orthdrop", "origdrop") for keep in "1234" for seed in (0, 1)]
    rounds = rounds_of(*((*cell, [i * 7919 % 97 + cell[2] for i in range(300)]) for cell in cells))
    folder = write_results(tmp_path / "one", rounds)
    assert 12 * len(page([Results.open(folder)])) < 5_000_000


def test_what_can_not_be_read_or_is_not_there_yet_is_said(tmp_path):
    empty = write_results(tmp_path / "empty", ROUNDS[:0], missing=["prism"])
    broken = write_results(tmp_path / "broken", ROUNDS)
    (broken / "rounds.csv").write_text("")
    one = write_results(tmp_path / "one", ROUNDS[:2])
    text = page([Results.open(folder) for folder in (empty, broken, one)])
    assert "No run is finished yet." in text
    assert "rounds.csv: can&#x27;t be read" in text
    assert text.count("<h2>") == 3


def test_no_drops_without_full_model_training(tmp_path):
    text = page([Results.open(write_results(tmp_path / "one", ROUNDS[ROUNDS["cuts"]]))])
    assert "<h3>Accuracy</h3>" in text
    assert "Drop against" not in text


def test_from_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = write_results(tmp_path / "results" / "small", ROUNDS, shows=["costs"])
    assert prism_bench.write_report().read_text("utf-8").count("<h2>") == 1
    file = prism_bench.write_report([folder, Results.open(folder)], tmp_path / "deep" / "page.html")
    assert file.read_text("utf-8").count("<h2>") == 2


@pytest.fixture(scope="module")
def browser():
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install prism-bench[test]")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("needs Chromium and its driver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1200,900"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield opened
    opened.quit()


@pytest.fixture(scope="module")
def file(folder):
    return prism_bench.write_report([folder], folder.parent / "report.html")


@pytest.fixture
def opened(browser, file):
    """The browser with the page open; what was logged before is forgotten."""
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(file.as_uri())
    return browser


def column(browser, number):
    rows = browser.find_element("css selector", "table.sheet").find_elements("css selector", "tbody tr")
    return [row.find_elements("css selector", "td")[number].text for row in rows]


def heads(browser):
    return browser.find_element("css selector", "table.sheet").find_elements("css selector", "th")


def test_in_a_browser_nothing_fails_and_nothing_is_loaded(opened):
    assert opened.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert len(asked) > 1
    assert [url[:5] for url in asked if not url.startswith(("file:", "data:"))] == []
    sizes = opened.execute_script("return [...document.images].map((image) => image.naturalWidth)")
    assert len(sizes) == 5
    assert min(sizes) > 100, "every picture is shown"


def test_in_a_browser_a_label_stays_text(opened):
    assert opened.execute_script("return document.querySelectorAll('script').length") == 1
    assert opened.execute_script("return document.querySelectorAll('img[onerror]').length") == 0
    assert NASTY in column(opened, 1)


def test_in_a_browser_a_click_sorts_numbers_as_numbers(opened):
    head = heads(opened)[3]
    assert head.text.startswith("accuracy")
    before = column(opened, 3)
    assert before == ["91.0 ± 1.4 (2)", "8.5 ± 0.7 (2)", "85.0 (1)", "100.0 (1)"]
    button = head.find_element("css selector", "button")
    button.click()
    assert column(opened, 3) == ["8.5 ± 0.7 (2)", "85.0 (1)", "91.0 ± 1.4 (2)", "100.0 (1)"]
    assert head.get_attribute("aria-sort") == "ascending"
    button.click()
    assert column(opened, 3) == ["100.0 (1)", "91.0 ± 1.4 (2)", "85.0 (1)", "8.5 ± 0.7 (2)"]
    assert head.get_attribute("aria-sort") == "descending"


def test_in_a_browser_the_keyboard_sorts_and_what_is_empty_stays_last(opened):
    from selenium.webdriver import ActionChains, Keys

    names = [head.text.split()[0] for head in heads(opened)]
    drop = names.index("drop")
    button = heads(opened)[drop].find_element("css selector", "button")
    opened.execute_script("arguments[0].focus()", button)
    ActionChains(opened).send_keys(Keys.ENTER).perform()
    first = column(opened, drop)
    assert (first[0], first[-1]) == ("-82.5", "")
    ActionChains(opened).send_keys(Keys.SPACE).perform()
    second = column(opened, drop)
    assert (second[0], second[-1]) == ("+8.0", "")
    ActionChains(opened).send_keys(Keys.TAB).perform()
    assert opened.switch_to.active_element.text.startswith("full"), "the next column's head is next"
    assert [head.get_attribute("aria-sort") for head in heads(opened)].count("descending") == 1
