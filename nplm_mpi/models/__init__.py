"""Kinds of models, dealt to the ranks."""
