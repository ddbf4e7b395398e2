"""The generic page: sections, pictures, escaped text."""

import re

from stochseg.reports.page import Picture, Section, Table, write_page

RED = "data:image/png;base64,iVBORw0KGgo="


def test_page_has_sections_and_pictures_and_escapes_text(tmp_path):
    page = write_page(
        tmp_path / "index.html",
        "Title & <b>",
        "Lead",
        [
            Section("First", "text <script>alert(1)</script>", pictures=[Picture(RED, "a <picture>")]),
            Section("Second", table=Table(["metric"], [["GED <16>", "0.2"]]), code="stochseg predict 'a & b'"),
        ],
    )
    text = page.read_text()
    assert text.count("<section>") == 2
    assert [h in text for h in ("First", "Second", "Lead", "0.2")] == [True] * 4
    assert "<script>" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert "GED &lt;16&gt;" in text
    assert "Title &amp; &lt;b&gt;" in text
    assert f'src="{RED}" alt="a &lt;picture&gt;"' in text
    assert not re.findall(r'(?:src|href)="(?!data:)', text), "the page needs nothing from outside"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["index.html"]
