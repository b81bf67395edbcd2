"""Export of a checkpoint to ONNX graphs, with the proof that they compute the same, as a bundle."""
