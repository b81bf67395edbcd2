"""Paths of the shipped checkpoint and its bundles."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
CHECKPOINT = ROOT / "model" / "pretrained" / "en-fr"
BUNDLE = CHECKPOINT.with_name("en-fr-int8")
FLOAT32_BUNDLE = ROOT / "build" / "bundle" / "en-fr"
