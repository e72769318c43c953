"""Topics of documents: latent Dirichlet allocation by variational Bayes and SVI."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from bayesrule.families import Dirichlet, Natural
from bayesrule.graphical._base import Messages
from bayesrule.graphical.documents import Documents, Group
from bayesrule.graphical.inference import VB, Inference
from bayesrule.graphical.latent import LatentModel, Local, natural_of
from bayesrule.tensors.unfit import whole_number

# The number of documents whose words a topic starts with.
_FIRST_DOCUMENTS = 20


@dataclass(eq=False, repr=False, kw_only=True)
class LDA(LatentModel):
    """Document d draws shares θ_d of K topics; each word draws a topic z from θ_d, then from β_z.

    `q(β) = Π_k Dirichlet(λ_k)`, `q(θ_d) = Dirichlet(γ_d)`, `q(z)` categorical; all nodes move with
    ρ = 1 (`inference=VB()`, message passing), or the topics on batches of documents with ρ < 1
    (`SVI()`). A word that occurs n times sends the message `n q(z = k)` to its entry of topic k.
    Blei et al. (2003); Hoffman et al. (2013), fig. 6; Khan & Rue (2023), sec. 5.3.

    - `doc_topic_prior`, `topic_word_prior`: concentrations of θ and β; None is 1/K.
    - `doc_passes`, `doc_tol`: γ of a document is updated up to `doc_passes` times, until the mean
      of its changes is below `doc_tol`.

    Learned: `components_` (K, V), the pseudo-counts of words in topics, and `report_`.
    """

    topics: int
    inference: Inference = field(default_factory=VB)
    doc_topic_prior: float | None = None
    topic_word_prior: float | None = None
    doc_passes: int = 100
    doc_tol: float = 1e-3
    _vocabulary: int = field(init=False)
    _words_seen: _Topics = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("topics", self.topics)
        if self.inference.at_mode:
            raise ValueError(
                "LDA needs the spread of its beliefs: topics at their mode never share words. Use "
                "inference=VB(), or SVI() for many documents."
            )
        for name, value in (("doc_topic", self._alpha), ("topic_word", self._eta)):
            if not (value > 0.0 and math.isfinite(value)):
                raise ValueError(f"{name}_prior is a number above 0; got {value}.")

    @property
    def _alpha(self) -> float:
        return 1.0 / self.topics if self.doc_topic_prior is None else self.doc_topic_prior

    @property
    def _eta(self) -> float:
        return 1.0 / self.topics if self.topic_word_prior is None else self.topic_word_prior

    def fit(self, x: Any, *, components: Any = None, progress: bool | None = None) -> Self:
        """Learns from counts (documents, words): scipy sparse, an array, a tensor or a frame.

        Starts at random topics, or at `components`: pseudo-counts of words in topics (K, V).
        """
        data = Documents.of(x)
        self._vocabulary = data.vocabulary
        self._climb(data, self._starts(data, components), progress)
        return self

    def _starts(self, data: Documents, components: Any) -> Iterator[Messages]:
        """Topics made of the words of a few random documents each, and a little of every word."""
        shape, generator = (self.topics, self._vocabulary), torch.Generator().manual_seed(self.seed)
        if components is not None:
            topics = torch.as_tensor(components, dtype=torch.float64)
            if topics.shape != shape or not bool((topics > 0).all()):
                raise ValueError(
                    f"components are {shape} numbers above 0; got {tuple(topics.shape)}."
                )
            yield {"topics": (topics - self._eta,)}
            return
        for _ in range(self.restarts):
            noise = torch.full(shape, 100.0, dtype=torch.float64)
            topics = torch._standard_gamma(noise, generator=generator) / 100.0
            for topic in topics:
                sample = data[torch.randperm(len(data), generator=generator)[: self._few(data)]]
                topic.index_add_(0, sample.words, sample.counts)
            yield {"topics": (topics,)}

    def _few(self, data: Documents) -> int:
        return min(_FIRST_DOCUMENTS, max(len(data) // self.topics, 1))

    def _prior(self) -> Messages:
        level = self._eta - 1.0
        return {
            "topics": (torch.full((self.topics, self._vocabulary), level, dtype=torch.float64),)
        }

    def _see(self, natural: dict[str, Natural]) -> None:
        self._natural = natural
        self._words_seen = _Topics.of(Dirichlet(natural["topics"]))

    def _local(self, batch: Documents) -> Local:
        """The optimal γ and q(z) of each document, as messages of words to topics."""
        total = torch.zeros_like(self._words_seen.words)
        evidence = total.new_zeros(())
        for group in batch.groups():
            settled = self._settled(group)
            evidence = evidence + settled.evidence.sum()
            shares = settled.pull.unsqueeze(-1) * settled.theta.unsqueeze(1)
            total.index_add_(0, group.words.flatten(), shares.flatten(0, 1))
        return Local({"topics": ((total * self._words_seen.words).T,)}, evidence)

    def _settled(self, group: Group) -> _Settled:
        """Alternates `γ_k = α + Σ_w n_w q(z_w = k)`, `q(z_w = k) ∝ exp(E[log θ_k + log β_kw])`."""
        whole = _Words.of(self._words_seen.words[group.words], group.counts)
        first = self._alpha + group.counts.sum(1, keepdim=True) / self.topics
        gamma = first.expand(-1, self.topics)
        settled, active, words = gamma.clone(), torch.arange(len(gamma)), whole
        for _ in range(self.doc_passes):
            theta, _ = _expected(gamma)
            new = self._alpha + theta * words.pulled(theta)
            moves = (new - gamma).abs().mean(1) > self.doc_tol
            gamma = new
            if int(moves.sum()) * 2 <= len(moves):
                # Once half of the group has settled, it is set aside.
                settled[active] = gamma
                active, words, gamma = active[moves], words.some(moves), gamma[moves]
                if len(active) == 0:
                    break
        settled[active] = gamma
        return self._with_bound(group, whole, settled)

    def _with_bound(self, group: Group, words: _Words, gamma: Tensor) -> _Settled:
        theta, peaks = _expected(gamma)
        norm = words.norm(theta)
        scale = peaks - torch.digamma(gamma.sum(1, keepdim=True))
        log_norm = norm.log() + scale + self._words_seen.peaks[group.words]
        prior = Dirichlet.make(torch.full_like(gamma, self._alpha))
        evidence = (group.counts * log_norm).sum(1) - Dirichlet.make(gamma).kl(prior)
        return _Settled(gamma, theta, group.counts / norm, evidence)

    def _divergence(self) -> float:
        belief, prior = Dirichlet(self._natural["topics"]), Dirichlet(self._prior()["topics"])
        return float(belief.kl(prior).sum())

    @property
    def components_(self) -> Tensor:
        """Pseudo-counts of words in topics, (K, V)."""
        self._need_fit()
        return self._natural["topics"][0] + 1.0

    def transform(self, x: Any) -> Tensor:
        """The expected shares of topics in each document, (D, K)."""
        self._need_fit()
        data = Documents.of(x, self._vocabulary)
        gamma = torch.zeros(len(data), self.topics, dtype=torch.float64)
        for group in data.groups():
            gamma[group.documents] = self._settled(group).gamma
        return gamma / gamma.sum(1, keepdim=True)

    def predict(self, x: Any) -> Tensor:
        """The topic with the largest share in each document, (D,)."""
        return self.transform(x).argmax(1)

    def log_prob(self, x: Any) -> Tensor:
        """A lower bound of `log p(words)` of each document, (D,), under the learned topics."""
        self._need_fit()
        data = Documents.of(x, self._vocabulary)
        bounds = torch.zeros(len(data), dtype=torch.float64)
        for group in data.groups():
            bounds[group.documents] = self._settled(group).evidence
        return bounds

    def score(self, x: Any) -> float:
        """The ELBO of documents: the sum of `log_prob`, less the divergence of the topics."""
        return float(self.log_prob(x).sum()) - self._divergence()

    def perplexity(self, x: Any) -> float:
        """`exp(−score / number of words)`, as scikit-learn has it; less is better."""
        return math.exp(-self.score(x) / Documents.of(x, self._vocabulary).rows)

    def top_words(self, names: Sequence[str] | None = None, num: int = 8) -> list[list[str]]:
        """The most probable words of each topic, by name or by number."""
        order = self.components_.argsort(1, descending=True)[:, :num].tolist()
        return [[str(w) if names is None else str(names[w]) for w in row] for row in order]

    def sample(self, num: int = 1, words: int = 100, seed: int = 0) -> Tensor:
        """Counts (num, V) of new documents with `words` words each."""
        generator = torch.Generator().manual_seed(seed)
        prior = Dirichlet.make(torch.full((self.topics,), self._alpha, dtype=torch.float64))
        mixed = prior.sample(num, generator) @ Dirichlet.make(self.components_).mean
        drawn = torch.multinomial(mixed, words, replacement=True, generator=generator)
        ones = torch.ones_like(drawn, dtype=torch.float64)
        return torch.zeros_like(mixed).scatter_add_(1, drawn, ones)

    def _adopt(self, tensors: dict[str, Tensor]) -> None:
        self._vocabulary = tensors["topics/0"].shape[1]
        self._see(natural_of(tensors))

    def _summary_lines(self) -> list[str]:
        sizes = self.components_.sum(1)
        order = sizes.argsort(descending=True)[:8].tolist()
        tops = self.top_words()
        return [f"{float(sizes[k] / sizes.sum()):6.1%} words {', '.join(tops[k])}" for k in order]


class _Settled(NamedTuple):
    """Documents at the optimal q: γ, `exp E[log θ]` up to a factor, `n_w / Σ_k θ_k β_kw`, ELBO."""

    gamma: Tensor
    theta: Tensor
    pull: Tensor
    evidence: Tensor


class _Topics(NamedTuple):
    """`exp E[log β]` (V, K), divided by the largest of each word, and the logs of these (V,)."""

    words: Tensor
    peaks: Tensor

    @classmethod
    def of(cls, topics: Dirichlet) -> _Topics:
        logs = topics.expectation[0].T.contiguous()
        peaks = logs.amax(1)
        return cls((logs - peaks.unsqueeze(1)).exp(), peaks)


class _Words(NamedTuple):
    """Topic weights of the words in documents, in both orders: products along rows are fast.

    `by_word` (b, l, K), `by_topic` (b, K, l), `counts` (b, l).
    """

    by_word: Tensor
    by_topic: Tensor
    counts: Tensor

    @classmethod
    def of(cls, by_word: Tensor, counts: Tensor) -> _Words:
        return cls(by_word, by_word.mT.contiguous(), counts)

    def norm(self, theta: Tensor) -> Tensor:
        """`Σ_k θ_k β_kw` of each word, (b, l)."""
        norm = (theta.unsqueeze(1) @ self.by_topic).squeeze(1)
        return norm.clamp_min_(torch.finfo(norm.dtype).tiny)

    def pulled(self, theta: Tensor) -> Tensor:
        """`Σ_w n_w β_kw / Σ_k θ_k β_kw`, (b, K)."""
        return ((self.counts / self.norm(theta)).unsqueeze(1) @ self.by_word).squeeze(1)

    def some(self, which: Tensor) -> _Words:
        return _Words(*(part[which] for part in self))


def _expected(gamma: Tensor) -> tuple[Tensor, Tensor]:
    """`exp ψ(γ)` divided by its largest entry, and the log of that, (b, 1).

    ψ(γ) is E[log θ] up to ψ(Σ γ).
    """
    logs = torch.digamma(gamma)
    peaks = logs.amax(1, keepdim=True)
    return (logs - peaks).exp(), peaks
