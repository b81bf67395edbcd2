"""The path of one call, without its transport: model choice, tokenizing, the engine, and output text or vectors."""
