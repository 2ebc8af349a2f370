"""Images: what a duck boots, with a manifest that says what is inside (docs/reference/images.md)."""
