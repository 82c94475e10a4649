"""A hook of mkdocs: links of pages to sources outside of docs/ lead to pages of the site that show these files.

The repository's own links stay as they are, so that they work in a checkout and on a forge.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)")
LANGUAGES = {".cc": "cpp", ".hpp": "cpp", ".h": "c", ".c": "c", ".py": "python", ".ipynb": "json", ".txt": "cmake",
             ".rs": "rust", ".go": "go", ".java": "java", ".cs": "csharp", ".js": "javascript"}  # fmt: skip


def source_of(page, link):
    """The path, from the root, of a file outside of docs/ that a page (its path in docs/) links to; None for others."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    return None if path.startswith("docs/") or not (ROOT / path).is_file() else path


def on_files(files, config):
    sources = set()
    for file in files.documentation_pages():
        links = [match[1] for match in LINK.finditer(file.content_string)]
        sources |= {path for link in links if (path := source_of(file.src_uri, link))}
    for path in sorted(sources):
        text = (ROOT / path).read_text()
        fence = LANGUAGES.get(Path(path).suffix, "")
        files.append(File.generated(config, f"sources/{path}.md", content=f"# {path}\n\n````{fence}\n{text}````\n"))
    return files


def on_page_markdown(markdown, page, config, files):
    def replace(match):
        path = source_of(page.file.src_uri, match[1])
        if path is None:
            return match[0]
        up = posixpath.relpath("sources/" + path + ".md", posixpath.dirname(page.file.src_uri) or ".")
        return f"]({up})"

    return LINK.sub(replace, markdown)
