"""Exactness, BLEU, and agreement with transformers."""
