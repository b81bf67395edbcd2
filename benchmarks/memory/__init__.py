"""Memory by part, and beside CTranslate2."""
