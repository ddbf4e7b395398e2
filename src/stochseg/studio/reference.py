"""The page /docs: a list of all routes, made from the OpenAPI document, without a script."""

from __future__ import annotations

from html import escape
from typing import Any

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}: API</title>
<link rel="stylesheet" href="/docs.css">
</head>
<body>
<main>
<h1>{title} {version}: API</h1>
<p>{description} The machine-readable form is <a href="/openapi.json">openapi.json</a>. Requests that change something
need the header <code>X-Stochseg: 1</code>; errors are JSON with message, expected, got and remedy.</p>
{groups}
</main>
</body>
</html>
"""
STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 2rem; text-transform: capitalize; }
dt { margin-top: 0.8rem; font-family: ui-monospace, monospace; }
dd { margin-left: 1.5rem; }
b { display: inline-block; min-width: 4.5rem; }
"""


def api_page(document: dict[str, Any]) -> str:
    """The page about an OpenAPI document."""
    groups: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, facts in operations.items():
            tag = facts.get("tags", ["other"])[0]
            groups.setdefault(tag, []).append(_entry(method, path, facts))
    sections = "".join(f"<h2>{escape(tag)}</h2><dl>{''.join(rows)}</dl>" for tag, rows in groups.items())
    info = {key: escape(str(document["info"].get(key, ""))) for key in ("title", "version", "description")}
    return _PAGE.format(**info, groups=sections)


def _entry(method: str, path: str, facts: dict[str, Any]) -> str:
    kinds = ", ".join(facts.get("requestBody", {}).get("content", {}))
    query = ", ".join(p["name"] for p in facts.get("parameters", ()) if p["in"] == "query")
    more = (f" Body: {escape(kinds)}." if kinds else "") + (f" Query: {escape(query)}." if query else "")
    text = escape(facts.get("description") or facts.get("summary", ""))
    return f"<dt><b>{method.upper()}</b> {escape(path)}</dt><dd>{text}{more}</dd>"
