"""Exactness, BLEU, and equality with transformers."""
