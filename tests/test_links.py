"""Links of Markdown files lead to existing files, and to headings in them.

``make links``, in a scheduled workflow, checks links to the web.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page.relative_to(ROOT).as_posix()
    for folder in (".", ".github", "benchmarks", "changes", "docs")
    for page in (ROOT / folder).glob("*.md" if folder in (".", ".github") else "**/*.md")
    if "generated" not in page.parts
)
FENCED = re.compile(r"^(`{3,}|~{3,}).*?^\1$", flags=re.M | re.S)


def prose(page: Path) -> str:
    """The text of a page without code."""
    return re.sub(r"`[^`\n]+`", "", FENCED.sub("", page.read_text(encoding="utf-8")))


def anchors(page: Path) -> set[str]:
    """Anchors of the headings, as GitHub and MyST make them."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", text, flags=re.M):
        slug = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        repeated = (f"{slug}-{number}" for number in range(1, 100))
        found.add(slug if slug not in found else next(s for s in repeated if s not in found))
    return found


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    links = re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"", prose(page))
    missing = []
    for link in (a or b for a, b in links):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if "://" in link:
            continue
        if target.suffix == ".ipynb":  # the site's build creates it
            target = ROOT / "tutorials" / f"{target.stem}.py"
        is_there = target.exists()
        if not is_there or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            missing.append(link)
    assert not missing
