"""The main loop and what it needs."""
