"""Parts and options in words, for all methods that have them."""

AT_MEAN = "at the mean (`AtMean`)"
AT_DRAWS = "at weight draws (`Draws`)"
DIAGONAL = "independent weights (`Diagonal`)"
FULL = "full covariance (`Dense`)"
GAUSS_NEWTON = "generalised Gauss-Newton matrix (`GGN`)"
AVERAGED = "natural gradient with momentum; the curvature is averaged over steps"

EXPLAINED = {
    "activations": "how activations carry means and variances on; None is MomentMatched(), "
    "for logits with width=0.1",
    "clip": "largest norm of the whole gradient",
    "curvature": "which curvature is estimated; None is Fisher()",
    "damped_root": "divides by √(f + γ) instead of √f + γ, γ the prior precision per example",
    "damping": "added to the curvature per example in steps of the mean, not in the belief",
    "difference": "takes second derivatives by differences of this relative size, such as 3e-4; "
    "None differentiates twice",
    "draws": "how many draws of the weights each step looks at",
    "empirical_prior": "whether the belief gets the prior precision of largest evidence; None: "
    "where neither a structure nor a prior_precision is given",
    "exact": "enumerates the outputs instead of drawing targets, for small nets",
    "expectation": "how the expected loss is taken: LocalDraws() and Flipout() have less noise "
    "than draws of weights, Moments() has none; None is Draws(1)",
    "gain": "the first standard deviations are gain / √fan_in; FanIn(...) tells kinds apart",
    "initial_curvature": "curvature per example that its average starts from; None: as the first "
    "batch says",
    "inverse_every": "every how many steps the belief follows the curvature, which is then "
    "inverted",
    "keep_gradients": "keeps the last gradients in state.rule['gradients'], for SignalToNoise",
    "kl_clip": "shortens steps that would move the predictions by more nats per example",
    "kl_weight": "factor of the KL, a number or a schedule (KL annealing)",
    "known": "names of weights, or patterns such as 'emb*', that have no variance",
    "last_layer": "whether only the last layer has a belief; None: where no structure is given",
    "learning_rate": "step size of the mean, a number or a schedule",
    "limit": "more weights than this are refused: the matrix has a row and a column for each",
    "momentum": "decay of the average of gradients",
    "num_data": "how many examples the whole data set has",
    "online": "averages the curvature during training instead of taking it once at the end",
    "optimiser": "a class of torch.optim, or a call that makes an optimiser of parameter groups",
    "prior": "what is believed before the data: GaussianPrior(δ), or a posterior of earlier data",
    "prior_precision": "δ of the prior N(0, I/δ) over all weights; None is 1",
    "rank": "rank of the standard deviations, or ranks by name such as {'conv*': None, '*': 2}, "
    "where None ties nothing",
    "rate": "share of the newest curvature in its average, a number or a schedule",
    "rule": "bounds on the steps; None is Conditioning()",
    "scale_multiplier": "learning rate of the standard deviations, as a multiple of learning_rate",
    "share": "part of each batch that the second-order term is taken from",
    "shared_draws": "whether all ranks of torch.distributed draw the same weights",
    "spread": "first standard deviations as a share of the prior's, or FanIn(...)",
    "stats_every": "every how many steps the curvature is estimated",
    "structure": "shape of the belief's precision, such as Kronecker(); None: full for the last "
    "layer, diagonal online",
    "temperature": "T in E[loss]/T + KL; below 1 the data count more",
    "widest": "layers with more inputs or outputs than this have diagonal blocks",
}
"""What each option does, where the method itself does not say otherwise."""
