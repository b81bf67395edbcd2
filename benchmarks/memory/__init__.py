"""Memory by part, and against CTranslate2."""
