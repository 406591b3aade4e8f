"""Independent implementations that results are compared with; they share no code with the package."""
