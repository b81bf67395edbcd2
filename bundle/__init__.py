"""An exported model on disk: manifest, graphs, tokenizer, and their verification. Needs no torch."""
