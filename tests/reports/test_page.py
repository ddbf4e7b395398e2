"""The generic page: sections, pictures, escaped text."""

import base64
import re

from PIL import Image

from stochseg.reports.page import Section, write_page


def test_the_page_holds_its_sections_and_pictures_and_escapes_text(tmp_path):
    Image.new("RGB", (4, 4), "red").save(tmp_path / "red.png")
    page = write_page(
        tmp_path / "index.html",
        "Title & <b>",
        "Lead",
        [
            Section("First", "text <script>alert(1)</script>", tmp_path / "red.png"),
            Section("Second", rows=[("GED <16>", "0.2")], code="stochseg predict 'a & b'"),
        ],
    )
    text = page.read_text()
    assert text.count("<section>") == 2
    assert [h in text for h in ("First", "Second", "Lead", "0.2")] == [True] * 4
    assert "<script>" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert "GED &lt;16&gt;" in text
    assert "Title &amp; &lt;b&gt;" in text
    (picture,) = re.findall(r'src="data:image/png;base64,([^"]+)"', text)
    assert base64.b64decode(picture) == (tmp_path / "red.png").read_bytes()
    assert not re.findall(r'(?:src|href)="(?!data:)', text), "the page needs nothing from outside"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["index.html", "red.png"]
