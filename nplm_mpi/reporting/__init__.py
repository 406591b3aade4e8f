"""Runs as a page: what is read of their folders, what is found out about models, figures, HTML."""
