"""What the site shows next to docs/: README as home page, other files of the repository, and notebooks as pages.

Pages of docs/ link to files of the repository by relative paths (`../benchmarks/results/x.csv`), so that the links work
in the repository too; here these links lead to the copies in the site.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
# Files of the repository and their places in the site.
COPIED = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "CITATION.cff": "CITATION.cff",
    "LICENSE": "LICENSE",
    **{str(card.relative_to(ROOT)): f"cards/{card.name}" for card in ROOT.glob("src/stochseg/models/*/*.md")},
    **{
        (name := str(file.relative_to(ROOT))): name
        for kind in ("py", "csv", "png")
        for file in ROOT.glob(f"benchmarks/**/*.{kind}")
    },
}
SEARCH_SCRIPT = "https://unpkg.com/iframe-worker/shim"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the copied files, and one page per notebook."""
    for source, target in COPIED.items():
        files.append(File.generated(config, target, abs_src_path=str(ROOT / source)))
    for file in list(files):
        if file.src_uri.endswith(".ipynb"):
            page = File.generated(
                config, file.src_uri.replace(".ipynb", ".md"), content=notebook_page(Path(file.abs_src_path))
            )
            files.append(page)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the repository into links between files of the site."""
    sources = {target: source for source, target in COPIED.items()}
    source = sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    depth = "../" * page.file.src_uri.count("/")

    def to_site(match: re.Match[str]) -> str:
        path, anchor = match[2], match[3] or ""
        absolute = (ROOT / source).parent.joinpath(path).resolve()
        if not absolute.is_relative_to(ROOT):
            return match[0]
        name = absolute.relative_to(ROOT).as_posix()
        target = COPIED.get(name) or name.removeprefix("docs/").replace(".ipynb", ".md")
        return f"{match[1]}{depth}{target}{anchor})"

    return re.sub(r"(\]\()(?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)", to_site, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Let the search of pages opened from disk use our script instead of one on the network."""
    return output.replace(SEARCH_SCRIPT, "../" * page.file.dest_uri.count("/") + "theme/file_worker.js")


def on_post_template(output_content: str, template_name: str, config: MkDocsConfig) -> str:
    """The same for the page of missing pages."""
    return output_content.replace(SEARCH_SCRIPT, "theme/file_worker.js")


# ---------------------------------------------------------------------- notebooks


def notebook_page(path: Path) -> str:
    """Convert a notebook with its outputs to Markdown."""
    notebook = nbformat.read(path, as_version=4)
    parts = [cell_markdown(cell) for cell in notebook.cells]
    title, *rest = parts
    return "\n\n".join([title, f'<a href="{path.name}" download>Download this notebook</a>', *rest])


def cell_markdown(cell: Any) -> str:
    if cell.cell_type == "markdown":
        return str(cell.source)
    outputs = [text for output in cell.outputs if (text := output_markdown(output))]
    return "\n\n".join([f"```python\n{cell.source}\n```", *outputs])


def output_markdown(output: Any) -> str:
    """The richest form of an output that a page can show."""
    if output.output_type == "stream":
        return f"```text\n{output.text.rstrip()}\n```"
    data = output.get("data", {})
    if "text/html" in data:
        without_gaps = re.sub(r"\n\s*\n", "\n", data["text/html"])  # an empty line would end the HTML
        return f'<div class="output">{without_gaps}</div>'
    if "image/png" in data:
        return f'<img alt="Output of the code above" src="data:image/png;base64,{data["image/png"].strip()}">'
    return f"```text\n{data['text/plain']}\n```" if "text/plain" in data else ""


# ---------------------------------------------------------------------- docstrings


class Docstrings(griffe.Extension):
    """Show examples (`>>>`) as code, and the fields of configs with their defaults and descriptions."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fence_examples(obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        configs = [cls for cls in classes(pkg) if any(base.name == "Config" for base in cls.mro())]
        described = [(cls, config_fields(cls)) for cls in configs]  # all before the first loses its members
        for cls, fields in described:
            cls.docstring = cls.docstring or griffe.Docstring("", parent=cls, parser="google")
            lines = [f"    {name} ({kind}): {meaning}" for name, (kind, meaning) in fields.items()]
            cls.docstring.value = "\n".join([cls.docstring.value, "", "Attributes:", *lines])
            for name in fields.keys() & cls.members.keys():
                cls.del_member(name)


def fence_examples(docstring: str) -> str:
    """Fence blocks of lines that start with `>>>` up to the next empty line."""
    out: list[str] = []
    closing = None
    for line in docstring.splitlines():
        if closing is None and line.lstrip().startswith(">>>"):
            closing = line[: len(line) - len(line.lstrip())] + "```"
            out.append(f"{closing}pycon")
        elif closing is not None and not line.strip():
            out.append(closing)
            closing = None
        out.append(line)
    return "\n".join(out if closing is None else [*out, closing])


def classes(module: griffe.Module) -> Iterator[griffe.Class]:
    for member in module.members.values():
        if isinstance(member, griffe.Class):
            yield member
        elif isinstance(member, griffe.Module):
            yield from classes(member)


def config_fields(cls: griffe.Class) -> dict[str, tuple[str, str]]:
    """Type and meaning of each field by name, those of base classes first."""
    fields = {}
    for owner in reversed([cls, *cls.mro()]):
        for name, member in owner.members.items():
            if "instance-attribute" in member.labels and member.annotation is not None and name[0] != "_":
                fields[name] = (str(member.annotation), field_meaning(member))
    return fields


def field_meaning(field: griffe.Attribute) -> str:
    """The description of a pydantic field and its default."""
    description, default = "", field.value
    if isinstance(field.value, griffe.ExprCall) and str(field.value.function) == "Field":
        keywords = {a.name: a.value for a in field.value.arguments if isinstance(a, griffe.ExprKeyword)}
        positional = [a for a in field.value.arguments if not isinstance(a, griffe.ExprKeyword)]
        description = re.sub(r"""^f?(['"])(.*)\1$""", r"\2", str(keywords.get("description", "")))
        default = next(iter(positional), keywords.get("default") or keywords.get("default_factory"))
    return ", ".join(filter(None, [description, "required" if default is None else f"default `{default}`"]))
