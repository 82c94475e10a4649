"""An extension of griffe, which reads the docstrings for the site: their examples are blocks of code."""

import re

import griffe

EXAMPLE = re.compile(r"^>>> (?:.+\n?)+", re.MULTILINE)


def fence(thing):
    if thing.docstring is not None:
        thing.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", thing.docstring.value)


class Examples(griffe.Extension):
    def on_object(self, *, obj, **arguments):
        fence(obj)

    def on_package(self, *, pkg, **arguments):  # which is no such object
        fence(pkg)
