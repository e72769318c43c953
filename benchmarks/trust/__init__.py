"""Whether defaults hold: generated data that nobody tuned on, and coverage by simulation."""
