"""What other libraries compute, in float64; each file is skipped where its library is missing."""
