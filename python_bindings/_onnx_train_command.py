"""The command onnx-train of an installed package: its program, in the place of this process.

Outside of the package onnx_train, whose import loads the library that the program loads anyway.
"""

import os
import sys


def main() -> None:
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "onnx_train", "onnx-train")
    os.execv(program, ["onnx-train", *sys.argv[1:]])
