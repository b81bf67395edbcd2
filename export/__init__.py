"""ONNX graphs of a checkpoint, the proof that they compute the same, and the bundle that holds both.

Importing this package, `export.bundle`, `export.graphs` or `export.verify` needs neither torch nor onnx.
"""
