"""ONNX graphs of a checkpoint, the proof that they compute the same, and the bundle that holds both.

Importing this package, `bundle.manifest`, `bundle.graphs` or `bundle.verify` needs neither torch nor onnx.
"""
