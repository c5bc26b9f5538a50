"""The page of a plan: whole, self-contained, escaped, small, and readable without scripts."""

import dataclasses
import html.parser
import itertools
import re

import pytest
from jax.sharding import AbstractMesh

import sbp
from sbp.plan.charts import RESOLUTION, Bar, in_order, merged
from sbp.plan.lines import program_lines
from sbp.plan.page import NOTEBOOK_LINES, PAGE_LINES
from tests.sbp.plan.test_plan import STEPS, plan_of

VOID = {"meta", "input", "br"}


class Reader(html.parser.HTMLParser):
    """Checks that tags close in order, and collects what the tests look at."""

    def __init__(self, text):
        """Reads the whole text."""
        super().__init__()
        self.open, self.tags, self.texts, self.rows = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        """Notes the tag, and a row or cell that it begins."""
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        """Notes a tag that closes itself."""
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        """The tag that was opened last closes first."""
        assert self.open.pop() == tag

    def handle_data(self, data):
        """Notes text, with the tag it stands in."""
        self.texts.append((self.open[-1] if self.open else "", data))
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    def all(self, tag):
        """Attributes of every tag of a name."""
        return [attrs for name, attrs in self.tags if name == tag]

    def text(self):
        """What a person reads."""
        return "".join(data for tag, data in self.texts if tag not in ("style", "script"))


def page_of(plan, tmp_path):
    plan.write_html(tmp_path / "plan.html")
    return (tmp_path / "plan.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", STEPS)
def test_the_page_and_its_piece_are_well_formed_and_need_no_network(name, tmp_path):
    plan = plan_of(name)
    for text in (page_of(plan, tmp_path), plan._repr_html_()):
        page = Reader(text)
        assert not re.search(r"https?:|//[a-z]|url\(|@import", text)
        assert not {"link", "img", "iframe"} & {tag for tag, _ in page.tags}
        assert not any({"src", "href", "id", "style"} & {*attrs} for _, attrs in page.tags)
        assert all(not key.startswith("on") for _, attrs in page.tags for key in attrs)


@pytest.mark.parametrize("name", STEPS)
def test_the_table_holds_every_line(name, tmp_path):
    plan = plan_of(name)
    head, *rows = Reader(page_of(plan, tmp_path)).rows
    lines = program_lines(plan)
    assert head[:4] == ["at", "operation", "operands", "result"]
    assert [row[:2] for row in rows] == [[line.source, line.operation] for line in lines]


def test_a_lane_for_compute_and_one_for_each_axis(tmp_path):
    plan = plan_of("sharded")
    page = Reader(page_of(plan, tmp_path))
    lanes = [data for tag, data in page.texts if tag == "div"]
    assert [lane for lane in lanes if lane.strip()][:3] == ["compute", "dp=2", "tp=4"]
    labels = [svg["aria-label"] for svg in page.all("svg")]
    assert [label.split(":")[0] for label in labels] == [
        "compute", "dp=2", "tp=4", "memory of a device over a call",
    ]  # fmt: skip
    drawn = {attrs["class"].removeprefix("k-") for attrs in page.all("rect")}
    wide = [r for r in plan.boxings if r.seconds * r.count >= RESOLUTION * plan.cost_seconds]
    assert wide
    assert {row.collective for row in wide if not row.is_local} <= drawn
    titles = [data for tag, data in page.texts if tag == "title"]
    assert any(title.startswith("all-gather params.w f32[3,8@(dp,tp),8]") for title in titles)


def test_bars_fill_the_time_of_a_call_in_order():
    plan = plan_of("sharded")
    order = in_order(program_lines(plan))
    assert sum(line.seconds for line in order) == pytest.approx(plan.cost_seconds)
    assert [line.equation for line in order] == sorted(line.equation for line in order)
    for before, line in itertools.pairwise(order):
        # What an equation needs is sent before it runs.
        assert (before.equation, before.kind, line.kind) != (line.equation, "equation", "boxing")


def test_narrow_bars_are_drawn_together():
    thin = [Bar(k, k + 1, "compute" if k % 3 else "local", "one") for k in range(10)]
    wide = Bar(10, 90, "all-reduce", "wide")
    last = Bar(90, 91, "local", "last")
    drawn = list(merged([*thin, wide, last], 10))
    assert drawn == [Bar(0, 10, "compute", "10 lines, 10 s"), wide, last]
    apart = [Bar(k, k + 1, "local", "one") for k in (0, 30, 60)]
    assert [(bar.start, bar.stop) for bar in merged(apart, 10)] == [(0, 31), (60, 61)]


def test_everything_is_escaped(tmp_path):
    evil = "<script>alert(1)</script>\"'&"
    plan = plan_of("megatron")
    row = dataclasses.replace(plan.boxings[0], array=evil, source=evil, reader=evil)
    equation = dataclasses.replace(plan.equations[0], source=evil, primitive=evil)
    plan = dataclasses.replace(
        plan, name=evil, cluster=evil, method=evil, notes=(evil,), memory_source=evil,
        arguments=((evil, sbp.NdSbp()),), boxings=(row,), mesh_sizes={"dp": 2, evil: 4},
        equations=(equation, *plan.equations[1:]),
        memory_parts=((evil, plan.memory_nbytes),),
    )  # fmt: skip
    plan = dataclasses.replace(plan, boxings=(dataclasses.replace(row, axes=(evil,)),))
    for text, scripts in ((page_of(plan, tmp_path), 1), (plan._repr_html_(), 0)):
        page = Reader(text)
        assert len(page.all("script")) == scripts
        assert "alert(1)" not in re.sub(r"&lt;script&gt;alert\(1\)&lt;/script&gt;", "", text)
        assert page.text().count(evil) >= 5


def test_a_notebook_needs_no_script_and_leaves_the_rest_of_it_alone():
    text = plan_of("sharded")._repr_html_()
    page = Reader(text)
    assert not page.all("script")
    assert page.tags[0] == ("div", {"class": "sbp-plan"})
    (style,) = [data for tag, data in page.texts if tag == "style"]
    plain = re.sub(r"@media[^{]*\{(.*?\}) \}", r"\1", style, flags=re.DOTALL)
    selectors = [part for rule in re.findall(r"([^{}]+)\{", plain) for part in rule.split(",")]
    assert len(selectors) > 30
    assert [part for part in selectors if ".sbp-plan" not in part] == []


def test_light_and_dark_name_the_same_colours(tmp_path):
    style = page_of(plan_of("megatron"), tmp_path).split("</style>")[0]
    blocks = re.findall(r"color-scheme: (light|dark);([^}]*)", style)
    names = {kind: set(re.findall(r"(--[a-z-]+):", text)) for kind, text in blocks}
    assert {kind for kind, _ in blocks} == {"light", "dark"}
    assert names["light"] == names["dark"]
    assert set(re.findall(r"var\((--[a-z-]+)\)", style)) <= names["light"]
    assert "prefers-color-scheme: dark" in style


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_can_be_told_from_the_ground(theme, tmp_path):
    style = page_of(plan_of("megatron"), tmp_path).split("</style>")[0]
    block = re.search(rf"color-scheme: {theme};([^}}]*--[^}}]*)", style).group(1)
    colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block))
    for name, colour in colours.items():
        if name not in ("ground", "raised", "rule"):
            least = 4.5 if name in ("ink", "quiet") else 3.0
            for ground in ("ground", "raised"):
                assert contrast(colour, colours[ground]) >= least, (name, ground)


def contrast(one, other):
    """The ratio of the web's guidelines for accessible content."""

    def luminance(colour):
        parts = (int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
        linear = (x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
        red, green, blue = linear
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_a_large_plan_stays_small(tmp_path):
    plan = plan_of("sharded")
    copies = 15_000 // len(plan.equations) + 1
    rows = tuple(
        dataclasses.replace(row, equation=row.equation + k * len(plan.equations))
        for k in range(copies)
        for row in plan.boxings
    )
    large = dataclasses.replace(
        plan, equations=plan.equations * copies, boxings=rows,
        cost_seconds=plan.cost_seconds * copies,
    )  # fmt: skip
    page = page_of(large, tmp_path)
    assert len(page) < 3_000_000
    assert len(large._repr_html_()) < 1_000_000
    number = len(program_lines(large))
    assert f"The {PAGE_LINES} dearest of {number} lines, " in page
    assert f"The {NOTEBOOK_LINES} dearest of {number} lines, " in large._repr_html_()
    assert len(Reader(page).rows) == 1 + PAGE_LINES


def test_a_plan_in_which_nothing_takes_time(tmp_path):
    plan = sbp.parallelize(lambda x: x, mesh=AbstractMesh((2,), ("dp",))).plan(1.0)
    text = page_of(plan, tmp_path)
    assert "Nothing in this plan takes time." in Reader(text).text()
    assert "Memory of one device" not in text
