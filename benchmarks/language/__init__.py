"""A small transformer of Hugging Face on film reviews, learned from scratch and by adapters."""
