"""What is close to the processor: vectors, compiled code, shared memory."""
