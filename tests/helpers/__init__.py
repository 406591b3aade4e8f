"""What tests use: how to start commands and ranks, what runs on ranks, files to try things on."""
