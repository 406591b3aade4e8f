"""What a trained model says about text."""
