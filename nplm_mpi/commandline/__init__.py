"""How commands begin, end and show."""
