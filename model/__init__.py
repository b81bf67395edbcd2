"""The Transformer in PyTorch: its configuration, checkpoints, reference decoder and training.

Importing this package or `model.config` needs no torch.
"""
