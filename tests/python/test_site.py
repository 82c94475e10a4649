"""The documentation as a site: it is built without a warning, and what its pages link to exists."""

import html.parser
import os
import re
import subprocess
import sys
import types
import urllib.parse
import xml.etree.ElementTree
from pathlib import Path

import pages
import pytest
import tool

pytest.importorskip("mkdocs", reason="mkdocs is not installed")
pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed")
PICTURES = sorted((tool.ROOT / "docs" / "pictures").glob("*.svg"))


class Page(html.parser.HTMLParser):
    """What an HTML file links to, what it loads, and the anchors that it has."""

    def __init__(self, path):
        super().__init__()
        self.links, self.loads, self.anchors, self.images = [], [], set(), []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors |= {attributes[key] for key in ("id", "name") if attributes.get(key)}
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        if tag == "img":
            self.images.append(attributes)
        if tag in ("img", "script", "link", "iframe"):
            self.loads += [attributes[key] for key in ("src", "href") if attributes.get(key)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "-d", folder], cwd=tool.ROOT,
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    return {path.relative_to(folder).as_posix(): Page(path) for path in folder.rglob("*.html")}, folder


def target_of(page, link):
    """(path, anchor) of a relative link of a page; None for one to another host."""
    address = urllib.parse.urlsplit(link)
    if address.scheme or address.netloc:
        return None
    path = urllib.parse.unquote(address.path)
    return os.path.normpath(Path(page).parent / path) if path else page, urllib.parse.unquote(address.fragment)


def test_every_page_is_in_the_site(site):
    built, _ = site
    expected = {Path(page).relative_to("docs").with_suffix(".html").as_posix() for page in pages.paths()
                if page.startswith("docs/")}  # fmt: skip
    assert expected <= built.keys() and len(expected) > 15


def test_the_index_by_task_leads_to_every_page():
    linked = set(re.findall(r"\]\(([\w/]+\.md)", pages.text_of("docs/index.md")))
    missing = {path.name for path in (tool.ROOT / "docs").glob("*.md")} - linked - {"index.md"}
    assert not missing, "docs/index.md says of no task for which one reads them"


def test_links_of_the_site_lead_to_pages_and_anchors(site):
    built, folder = site
    count = 0
    for name, page in built.items():
        if name == "404.html":  # its addresses begin at the root of a server
            continue
        for link in page.links + page.loads:
            target = target_of(name, link)
            if target is None:
                continue
            path, anchor = target
            assert (folder / path).is_file(), f"{name} links to {link}"
            assert not anchor or path not in built or anchor in built[path].anchors, f"{name} links to {link}"
            count += 1
    assert count > 500


def test_pages_load_nothing_from_other_hosts(site):
    for name, page in site[0].items():
        assert not [load for load in page.loads if "//" in load], name


def test_sources_that_pages_link_to_are_in_the_site(site):
    built, folder = site
    assert "../sources/examples/cpp/train.cc.html" in built["tutorials/cpp.html"].links
    assert "export_inference" in (folder / "sources/examples/cpp/train.cc.html").read_text()


def members(kind):
    return [name for name, member in vars(kind).items()
            if name[0] != "_" and isinstance(member, (types.FunctionType, classmethod, staticmethod, property))]  # fmt: skip


def test_the_reference_of_python_has_all_that_is_public(site):
    onnx_train = pytest.importorskip("onnx_train", reason="the Python package is not built")
    page, text = site[0]["python_api.html"], (site[1] / "python_api.html").read_text()
    things = {name: getattr(onnx_train, name) for name in onnx_train.__all__}
    names = [name for name, thing in things.items() if not isinstance(thing, types.ModuleType)]
    names += [f"{name}.{member}" for name, thing in things.items() if isinstance(thing, type) for member in members(thing)]
    assert {name for name in names if f"onnx_train.{name}" not in page.anchors} == set() and len(names) > 80
    assert "onnx_train.losses.cross_entropy" in page.anchors and "onnx_train.onnxruntime.training.api.Module" in page.anchors
    assert "for gradients and activations" in text  # an option of Session: written by the build
    assert "<blockquote>" not in text  # which an example is without scripts/griffe_examples.py


def test_pictures_have_a_text_and_both_colour_schemes(site):
    used = {Path(image["src"]).name for page in site[0].values() for image in page.images}
    assert all(image.get("alt") for page in site[0].values() for image in page.images)
    screenshots = {path.name for path in (tool.ROOT / "docs" / "pictures").glob("*.png")}
    assert len(PICTURES) == 5 and used == {path.name for path in PICTURES} | screenshots
    for path in PICTURES:
        root = xml.etree.ElementTree.parse(path).getroot()
        assert "prefers-color-scheme: dark" in path.read_text() and root.get("viewBox")
        assert root.find("{http://www.w3.org/2000/svg}title").text


def slugs(text):
    """The anchors that a forge gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", pages.paths())
def test_links_in_the_repository_lead_to_files_and_anchors(page):
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", pages.text_of(page), flags=re.DOTALL | re.MULTILINE)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        target = target_of(page, link)
        if target is None:
            continue
        path, anchor = target
        assert (tool.ROOT / path).exists(), f"{page} links to {link}"
        assert not anchor or anchor in slugs((tool.ROOT / path).read_text()), f"{page} links to {link}"
