"""An exported model on disk: manifest, graphs, tokenizer, and the proof that it computes the same. Needs no torch."""
