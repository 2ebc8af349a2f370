"""The fleet as the host sees it: its files, its ducks' versions, loading and watching them."""
