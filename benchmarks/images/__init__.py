"""Images and film reviews: TAGI, variational posteriors, noisy natural gradients, attacks."""
