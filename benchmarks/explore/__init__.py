"""Decisions from uncertainty: contextual bandits and Q-learning."""
