"""Measures a running server with prompts from files, and archives the evidence."""
