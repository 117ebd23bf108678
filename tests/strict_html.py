"""A strict check of HTML pages: what browsers repair silently is an error here."""

import html.entities
import html.parser
import re

VOID = {"br", "hr", "img", "link", "meta", "wbr"}
PHRASING = {"wbr", "a", "b", "br", "code", "em", "i", "img", "small", "span", "strong", "sub", "sup"}
PHRASING_ONLY = {"p", "h1", "h2", "h3", "h4", "pre", "code", "a", "caption", "summary", "title", "span", "em", "strong"}
PARENTS = {  # where an element may stand, if not anywhere
    "html": {""},
    "head": {"html"},
    "body": {"html"},
    "title": {"head", "g"},  # of a page, or of a mark of a figure
    "li": {"ul", "ol"},
    "dt": {"dl"},
    "dd": {"dl"},
    "caption": {"table"},
    "thead": {"table"},
    "tbody": {"table"},
    "tr": {"thead", "tbody"},
    "th": {"tr"},
    "td": {"tr"},
    "figcaption": {"figure"},
    "summary": {"details"},
}
REFERENCE = re.compile(r"&(?:([A-Za-z][A-Za-z0-9]*)|#[0-9]+|#[xX][0-9A-Fa-f]+);")
START = re.compile(r'<[a-z][A-Za-z0-9]*(?:\s+[a-z][A-Za-z0-9-]*(?:="[^"<>]*")?)*\s*>')


class NotStrict(AssertionError):
    """What is wrong with a page, and in which line."""


class _Parser(html.parser.HTMLParser):
    """Keeps the open elements, and sees that each is closed in its turn."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.open: list[str] = []
        self.seen: list[str] = []
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.begun = False
        self.titles = 0  # of the page

    def wrong(self, message: str) -> NotStrict:
        return NotStrict(f"line {self.getpos()[0]}: {message}")

    def handle_decl(self, decl: str) -> None:
        if self.begun or decl.lower() != "doctype html":
            raise self.wrong(f"unexpected <!{decl}>")
        self.begun = True

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if not self.begun:
            raise self.wrong("no <!doctype html> before the first element")
        text = self.get_starttag_text() or ""
        if START.fullmatch(text) is None:
            raise self.wrong(f"malformed tag {text[:80]!r}")
        names = [name for name, _ in attrs]
        if len(set(names)) < len(names):
            raise self.wrong(f"an attribute is given twice in {text[:80]!r}")
        parent = self.open[-1] if self.open else ""
        if parent not in PARENTS.get(tag, {parent}):
            raise self.wrong(f"<{tag}> in <{parent}>")
        for around in self.open:
            if around in PHRASING_ONLY and tag not in PHRASING:
                raise self.wrong(f"<{tag}> inside <{around}>")
        if tag == "a" and "a" in self.open:
            raise self.wrong("<a> inside <a>")
        known = dict(attrs)
        if tag == "img" and not known.get("alt"):
            raise self.wrong("<img> without alt")
        if tag == "svg" and not known.get("aria-label"):
            raise self.wrong("<svg> without aria-label")
        if (key := known.get("id")) is not None:
            if key in self.ids or not key or " " in key:
                raise self.wrong(f"id {key!r} is given twice, empty or has a space")
            self.ids.add(key)
        if tag == "a" and (known.get("href") or "").startswith("#"):
            self.links.append((known["href"] or "")[1:])
        self.titles += tag == "title" and parent == "head"
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        raise self.wrong(f"<{tag}/> closes itself")

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open[-1] != tag:
            raise self.wrong(f"</{tag}> where <{self.open[-1] if self.open else 'nothing'}> is open")
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("style", "script"):
            return
        if "<" in data or ">" in data:
            raise self.wrong(f"bare character in {data[:80]!r}")
        parent = self.open[-1] if self.open else ""
        if data.strip() and parent in ("", "html", "head", "table", "thead", "tbody", "tr", "ul", "ol", "dl"):
            raise self.wrong(f"text in <{parent}>: {data.strip()[:80]!r}")

    def handle_comment(self, data: str) -> None:
        raise self.wrong(f"unexpected comment {data[:80]!r}")

    def handle_pi(self, data: str) -> None:
        raise self.wrong(f"unexpected <?{data[:80]}")

    def unknown_decl(self, data: str) -> None:
        raise self.wrong(f"unexpected <![{data[:80]}")


def check_html(page: str) -> list[str]:
    """See that a page is strict HTML.

    Returns:
      the names of its elements, in their order.

    Raises:
      NotStrict: an element is not closed, or closed out of turn, or stands where it may not; an
        attribute without quotes or given twice; an unknown entity or a bare `<`, `>` or `&`; an
        id given twice; a link to an id that is not there; an image without a text; something
        before the doctype.
    """
    for found in re.finditer("&", re.sub(r"<(style|script)\b.*?</\1>", "", page, flags=re.DOTALL)):
        reference = REFERENCE.match(found.string, found.start())
        if reference is None or (reference[1] and f"{reference[1]};" not in html.entities.html5):
            raise NotStrict(f"unknown entity at {found.string[found.start() : found.start() + 20]!r}")
    parser = _Parser()
    parser.feed(page)
    if parser.rawdata.strip():
        raise parser.wrong(f"the page ends within {parser.rawdata[:80]!r}")
    if parser.open:
        raise parser.wrong(f"not closed: {', '.join(parser.open)}")
    if parser.seen.count("html") != 1 or parser.titles != 1 or parser.seen.count("body") != 1:
        raise parser.wrong("expected one <html>, one <title> and one <body>")
    if dangling := set(parser.links) - parser.ids:
        raise parser.wrong(f"links to nowhere: {', '.join(sorted(dangling))}")
    return parser.seen
