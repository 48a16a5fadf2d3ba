"""The planted-fault benchmark: backends with one known fault each, and how soon a search finds them."""
