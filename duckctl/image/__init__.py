"""Images: what a duck boots, and a manifest of what is inside (docs/reference/images.md)."""
