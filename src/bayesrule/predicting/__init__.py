"""What a belief says of new inputs, and how good that is."""
