"""The network of section 2, trained as in sections 3.2 and 3.1."""
