"""The deep network: what came after the paper, on the paper's parallel output layer."""
