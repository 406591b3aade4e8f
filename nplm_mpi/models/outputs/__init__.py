"""From the hidden layer to probabilities."""
