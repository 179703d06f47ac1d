"""The nouns: strict pydantic models without I/O. Import the module you need; nothing is re-exported here."""
