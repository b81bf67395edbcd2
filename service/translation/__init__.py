"""One call without its transport: text to tokens, through the engine, tokens to text; and which model serves it."""
