"""From a bundle on disk to a warm model: verification, warm-up, trial calls, replacement."""
