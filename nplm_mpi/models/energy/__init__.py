"""The energy model of section 5.1: the predicted word is an input of the hidden units, too."""
