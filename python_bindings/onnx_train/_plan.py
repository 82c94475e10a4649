"""What a run executes."""

from __future__ import annotations

from typing import NamedTuple


class PlanNode(NamedTuple):
    """One node of a `Plan`.

    Attributes:
        name: of the node; empty where it has none.
        op: its operator.
        kernel: what computes it; ``"view"`` where nothing is computed.
        flops: operations of products and convolutions by element type, ``{"float": 1024.0}``.
        bytes: that it reads and writes.

    >>> import onnx_train
    >>> node = onnx_train.Session("mlp.onnx").plan("predict").nodes[0]
    >>> node.op, node.bytes > 0
    ('Gemm', True)
    """

    name: str
    op: str
    kernel: str
    flops: dict[str, float]
    bytes: float


class Plan:
    """What a run of an entry point executes. ``print(plan)`` prints what ``onnx-train show --plan`` prints.

    Attributes:
        nodes: each a `PlanNode`, in the order in which they run.
        arena_bytes: memory of gradients and activations at its peak, workspace included. The state comes on top.
        workspace_bytes: of it, what kernels need besides their outputs.
        constant_bytes: memory of constants.

    >>> import onnx_train
    >>> plan = onnx_train.Session("mlp.onnx").plan("predict", batch=8)
    >>> print(plan)  # doctest: +ELLIPSIS
    #  operator ...
    >>> plan.arena_bytes > 0
    True
    """

    def __init__(self, text: str, json_text: str, arena_bytes: int, workspace_bytes: int, constant_bytes: int) -> None:
        import json

        self._text = text
        self.nodes = [
            PlanNode(node["name"], node["op"], node["kernel"], node["flops"], node["bytes"])
            for node in json.loads(json_text)
        ]
        self.arena_bytes, self.workspace_bytes, self.constant_bytes = arena_bytes, workspace_bytes, constant_bytes

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"<onnx_train.Plan: {len(self.nodes)} nodes>"
