"""Exports of real models, as their frameworks write them, tiny and with random weights: what onnx-train makes of each.

`python models/zoo/run.py` checks all of them and writes docs/zoo.md; tests/python/families/test_zoo.py checks the quick
ones. Each file holds one family; `families.py` lists the files.
"""
