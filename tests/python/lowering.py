"""Names of the lowering passes, and which of them must not change a bit: they only move data, or run the same
arithmetic elsewhere."""

import functools
import json

import tool

MODEL = tool.ROOT / "tests/fixtures/mlp.onnx"
# Where values are stored is no pass and changes none of them.
PLACEMENT = {"views", "write_in_place", "update_in_place", "replay"}


@functools.cache
def passes():
    """Names of all passes and placement choices that can be left out, from the message about an unknown one."""
    message = tool.run("show", MODEL, "--plan", "--lowering", "-unknown", status=1)
    return message.split("there are: ")[1].strip().split(", ")


@functools.cache
def numbers():
    """What the table of passes promises of each: "equal in bits", "equal in bits but grad_norm" or ""."""
    rows = json.loads(tool.run("opt", "--list-passes", "--json"))
    promised = {row["name"]: row["numbers"] for row in rows if row["pipeline"] == "lowering"}
    return promised | dict.fromkeys(PLACEMENT, "equal in bits")


def is_exact(name):
    return numbers()[name] == "equal in bits"


def is_exact_but_norm(name):
    """The norm's squares may be added in another order; an update that does not read it stays as it is."""
    return numbers()[name] == "equal in bits but grad_norm"
