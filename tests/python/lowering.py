"""Names of the lowering passes, and which of them must not change a bit: they only move data, or run the same
arithmetic elsewhere."""

import functools

import tool

EXACT = {"views", "write_in_place", "update_in_place", "merge_updates", "order_nodes", "recompute",
         "narrow_storage", "simplify_masks", "pack_attention",
         "share_scalars"}  # fmt: skip


@functools.cache
def passes():
    """Names of all passes and placement choices that can be left out, from the message about an unknown one."""
    message = tool.run("show", tool.ROOT / "tests/fixtures/mlp.onnx", "--plan", "--lowering", "-unknown", status=1)
    return message.split("there are: ")[1].strip().split(", ")
