"""The Transformer in PyTorch: its configuration, checkpoints, reference decoder and training.

Importing this package, `model.config` or `model.tokenizer` needs no torch.
"""
