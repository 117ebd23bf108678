"""Hooks of MkDocs: the site mirrors the repository.

Pages are those at the root and in docs/, every Markdown file that they link to, and the reference pages that
`reference.py` makes from the code.  Any other file that a page links to is copied to the same path.  So a link
is the same in the repository and on the site.  Formulas become MathML, which browsers show without a script.
"""

import pathlib
import re
from collections.abc import Iterator
from typing import Any

import reference
from formulas import mathml
from mkdocs.structure.files import File, Files

LINK = re.compile(r"\]\(([^()\s]+)\)")
CODE = re.compile(r"(^```.*?^```[^\n]*$|`+[^`]+`+)", re.DOTALL | re.MULTILINE)
FORMULA = re.compile(r"\$\$(.+?)\$\$|\$([^\s$](?:[^$\n]*[^\s$])?)\$", re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Replace the pages of docs/ by those of the repository, at their paths in the repository."""
    root = pathlib.Path(config.config_file_path).parent
    for file in [file for file in files if file.src_dir == config.docs_dir]:
        files.remove(file)
    first = [*sorted(root.glob("*.md")), *sorted((root / "docs").glob("*.md"))]
    for name in ("docs/site/site.css", *sorted(reachable(root, first))):
        files.append(File(name, str(root), config.site_dir, config.use_directory_urls))
    for name, make in reference.PAGES.items():
        files.append(File.generated(config, f"docs/reference/{name}.md", content=make()))
    return files


def reachable(root: pathlib.Path, pages: list[pathlib.Path]) -> set[str]:
    """The files that the pages, and the pages that they link to, name in links: paths seen from the root."""
    found, waiting = set(pages), list(pages)
    while waiting:
        page = waiting.pop()
        for target in links(page):
            if target.is_file() and target.is_relative_to(root) and target not in found:
                found.add(target)
                waiting += [target] if target.suffix == ".md" else []
    return {path.relative_to(root).as_posix() for path in found}


def links(page: pathlib.Path) -> Iterator[pathlib.Path]:
    """Where the links and images of a page lead, but for other hosts."""
    for link in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        if "://" not in link and not link.startswith("#"):
            yield (page.parent / link.partition("#")[0]).resolve()


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The text of a page with its formulas as MathML; code is left alone."""
    parts = CODE.split(markdown)
    return "".join(part if i % 2 else FORMULA.sub(_formula, part) for i, part in enumerate(parts))


def _formula(found: re.Match[str]) -> str:
    return mathml(found[1] or found[2], display=found[1] is not None)
