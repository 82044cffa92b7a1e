"""Build the documentation as a site, from the project's own pages: `make site`, and then open
build/site/index.html; searching it needs a web server (python -m http.server -d build/site).

The one rule: pages are as they stand in the project. What they link to comes along, a link to a
folder leads to its README, and nothing is fetched from anywhere.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "build" / "site-source"
LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)\s]*)?\))")


def links(page: Path) -> Iterator[Path]:
    """Yield the files of the project to which a page leads."""
    for _, target, _ in LINK.findall(page.read_text(encoding="utf-8")):
        found = (page.parent / target).resolve()
        yield found / "README.md" if found.is_dir() else found


def reached(menu: set[Path]) -> set[Path]:
    """Return the pages of the menu, and all that can be reached from them by links."""
    found: set[Path] = set()
    ahead = [*menu]
    while ahead:
        page = ahead.pop()
        if page not in found:
            found.add(page)
            ahead += links(page) if page.suffix == ".md" else []
    return found


def brought(page: Path, pages: Path) -> None:
    """Copy a file to its place among the pages."""
    there = pages / page.relative_to(ROOT)
    there.parent.mkdir(parents=True, exist_ok=True)
    if page.suffix != ".md":
        shutil.copyfile(page, there)
        return

    def to_readme(link: re.Match[str]) -> str:
        inside = (page.parent / link[2]).is_dir()
        return f"{link[1]}{link[2].rstrip('/')}/README.md{link[3]}" if inside else link[0]

    there.write_text(LINK.sub(to_readme, page.read_text(encoding="utf-8")), encoding="utf-8")


def build(site: Path) -> None:
    """Write the site. Raises `ValueError` if a page is in no menu, `FileNotFoundError` if a page of
    the menu is not there, `CalledProcessError`.
    """
    config = (ROOT / "docs" / "site.yml").read_text(encoding="utf-8")
    menu = {ROOT / page for page in re.findall(r"(?m)^ +- .*: (\S+\.md)$", config)}
    files = reached(menu)
    if left := [str(page) for page in files - menu if page.suffix == ".md"]:
        raise ValueError(f"in no menu of docs/site.yml: {', '.join(left)}")
    shutil.rmtree(SOURCE, ignore_errors=True)
    for page in files:
        brought(page, SOURCE / "pages")
    (SOURCE / "zensical.yml").write_text(config, encoding="utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--strict", "-f", "zensical.yml"]
    subprocess.run(command, check=True, cwd=SOURCE)
    shutil.rmtree(site, ignore_errors=True)
    shutil.copytree(SOURCE / "site", site)
    for page in files:
        if page.suffix != ".md":  # what lies in hidden folders is left out otherwise
            brought(page, site)


if __name__ == "__main__":
    build(ROOT / "build" / "site")
