"""Descriptions of parts and options that several methods share."""

AT_MEAN = "at the mean (`AtMean`)"
AT_DRAWS = "at weight draws (`Draws`)"
DIAGONAL = "independent weights (`Diagonal`)"
FULL = "full covariance (`Dense`)"
GAUSS_NEWTON = "generalised Gauss-Newton matrix (`GGN`)"
AVERAGED = "natural gradient with momentum; the curvature is averaged over steps"

EXPLAINED = {
    "activations": "how activations propagate means and variances; None is MomentMatched(), "
    "for logits with width=0.1",
    "clip": "largest norm of the whole gradient",
    "curvature": "which curvature is estimated; None is Fisher()",
    "damped_root": "divides by √(f + γ) instead of √f + γ, γ the prior precision per example",
    "damping": "added to the curvature per example in steps of the mean, not in the posterior",
    "difference": "takes second derivatives by finite differences of this relative size, such as "
    "3e-4; None differentiates twice",
    "draws": "number of weight draws per step",
    "empirical_prior": "whether the final posterior gets the prior precision of largest evidence; "
    "None: if neither structure nor prior_precision is given",
    "exact": "enumerates the outputs instead of drawing targets, for small nets",
    "expectation": "how the expected loss is estimated: LocalDraws() and Flipout() have less noise "
    "than weight draws, Moments() has none; None is Draws(1)",
    "gain": "initial standard deviations are gain / √fan_in; FanIn(...) sets them by kind of "
    "weight",
    "initial_curvature": "initial value of the averaged curvature, per example; None estimates it "
    "from the first batch",
    "inverse_every": "the posterior takes over the curvature, and inverts it, every so many steps",
    "keep_gradients": "keeps the last gradients in state.rule['gradients'], for SignalToNoise",
    "kl_clip": "shortens steps that would move the predictions by more nats per example",
    "kl_weight": "factor of the KL, a number or a schedule (KL annealing)",
    "known": "names of weights, or patterns such as 'emb*', that have no variance",
    "last_layer": "whether only the last layer has a posterior; None: if no structure is given",
    "learning_rate": "step size of the mean, a number or a schedule",
    "limit": "largest number of weights, since the matrix has a row and a column for each",
    "momentum": "decay of the average of gradients",
    "num_data": "number of examples in the whole data set",
    "online": "averages the curvature during training instead of computing it once at the end",
    "optimiser": "a class of torch.optim, or a function that makes an optimiser of parameter "
    "groups",
    "prior": "the prior: GaussianPrior(δ), or a posterior from earlier data",
    "prior_precision": "δ of the prior N(0, I/δ) over all weights; None is 1",
    "rank": "rank of the standard deviations, or ranks by name such as {'conv*': None, '*': 2}, "
    "where None ties nothing",
    "rate": "weight of the newest curvature in its average, a number or a schedule",
    "rule": "bounds on the steps; None is Conditioning()",
    "scale_multiplier": "learning rate of the standard deviations, as a multiple of learning_rate",
    "share": "fraction of each batch that the second-order term is computed from",
    "shared_draws": "whether all ranks of torch.distributed draw the same weights",
    "spread": "initial standard deviations as a fraction of the prior's, or FanIn(...)",
    "stats_every": "the curvature is estimated every so many steps",
    "structure": "structure of the posterior's precision, such as Kronecker(); None: full for the "
    "last layer, diagonal online",
    "temperature": "T in E[loss]/T + KL; below 1 the data count more",
    "widest": "layers with more inputs or outputs than this have diagonal blocks",
}
"""What each option does, unless a method explains it itself."""
