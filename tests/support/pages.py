"""Parser of written pages."""

import re
from html.parser import HTMLParser


class Page(HTMLParser):
    """Images, links, anchors and text of a page."""

    def __init__(self, file):
        super().__init__()
        self.images, self.links, self.anchors, self.tags, self.words = [], [], [], [], []
        self.sliders = []
        self.feed(file.read_text())
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.tags.append(tag)
        self.anchors += [values["id"]] if "id" in values else []
        if tag == "input":
            self.sliders.append((int(values["min"]), int(values["max"]), int(values["value"])))
        if tag == "img":
            self.images.append((values["alt"], values["src"]))
        self.links += [values[key] for key in ("href", "src") if key in values and tag != "img"]

    def handle_data(self, data):
        self.words.append(data)

    def check(self):
        """Check that the page needs no other file and that its links lead somewhere."""
        assert self.images
        for alt, source in self.images:
            assert alt
            assert re.match(r"data:image/(png|jpeg|svg\+xml);base64,", source)
        assert not {"link", "iframe", "object"}.intersection(self.tags)
        assert self.tags.count("script") == bool(self.sliders), "inline, without a source; only for sliders"
        for link in self.links:
            assert link.startswith("#")
            assert link[1:] in self.anchors
        assert len(set(self.anchors)) == len(self.anchors)
        return self
