"""`torch.optim` optimisers for your own training loop: the methods that need only `.grad`.

The loss is the batch mean of the negative log-likelihood; the optimiser adds the prior.

>>> import torch
>>> from bayesrule.optim import IVON
>>> x = torch.linspace(-1.0, 1.0, 20)[:, None]
>>> y, model = 2.0 * x, torch.nn.Linear(1, 1)
>>> optimizer = IVON(model.named_parameters(), num_data=len(x), lr=0.5, rate=0.1)
>>> for _ in range(200):
...     with optimizer.sampled_params():  # the weights are a draw inside, and restored after
...         loss = 0.5 * (model(x) - y).square().mean()  # noise of standard deviation 1
...         optimizer.zero_grad()
...         loss.backward()
...     _ = optimizer.step()
>>> {name: tuple(v.shape) for name, v in optimizer.posterior.variance().items()}
{'weight': (1, 1), 'bias': (1,)}
>>> with optimizer.sampled_params(train=False), torch.no_grad():  # one draw to predict with
...     model(x).shape
torch.Size([20, 1])
"""

from bayesrule.optim.base import BayesianOptimizer
from bayesrule.optim.named import IVON, SGD, Adam, RMSprop

__all__ = ["Adam", "BayesianOptimizer", "IVON", "RMSprop", "SGD"]
