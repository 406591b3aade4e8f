"""What a program or a notebook calls: training, and models that can be trained further."""
