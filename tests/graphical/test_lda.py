"""Topics against scikit-learn from the same start, and against sums over all topics of words."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from exact import DTYPE, close, generator, z_close
from scipy import sparse
from sklearn.decomposition import LatentDirichletAllocation
from torch import Tensor

from bayesrule.families import Dirichlet
from bayesrule.graphical import EM, LDA, SVI, VB, FitWarning, NotFittedError
from bayesrule.graphical.documents import Documents

TOPICS, WORDS = 3, 30


def counts(num: int = 120, seed: int = 0) -> Tensor:
    """Documents of about 40 words from three topics, one of them empty."""
    rng = generator(seed)
    topics = Dirichlet.make(torch.full((TOPICS, WORDS), 0.1, dtype=DTYPE)).sample(1, rng)[0]
    shares = Dirichlet.make(torch.full((TOPICS,), 0.3, dtype=DTYPE)).sample(num, rng)
    lengths = 30 + torch.randint(20, (num,), generator=rng)
    lengths[5] = 0
    found = torch.zeros(num, WORDS, dtype=DTYPE)
    for row, (share, length) in enumerate(zip(shares, lengths.tolist(), strict=True)):
        if length:
            drawn = torch.multinomial(share @ topics, length, replacement=True, generator=rng)
            found[row] = torch.bincount(drawn, minlength=WORDS)
    return found


def start(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).gamma(1.0, 1.0, (TOPICS, WORDS)) + 0.01


def fitted(x: Any, how: Any, **options: Any) -> LDA:
    """From given topics, with as many passes as asked, whether they suffice or not."""
    settled = {"doc_tol": 1e-9, "doc_passes": 2000, **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        return LDA(topics=TOPICS, inference=how, **settled).fit(x, components=start())


def theirs(x: Tensor, passes: int) -> LatentDirichletAllocation:
    """scikit-learn's model after some passes from the same topics."""
    model = LatentDirichletAllocation(
        TOPICS, max_iter=passes, mean_change_tol=1e-9, max_doc_update_iter=2000
    )
    first = model._init_latent_vars

    def begun(*args: Any, **options: Any) -> None:
        first(*args, **options)
        model.components_ = start()
        model.exp_dirichlet_component_ = np.exp(
            Dirichlet.make(model.components_).expectation[0].numpy()
        )

    model._init_latent_vars = begun
    return model.fit(x.numpy())


@pytest.mark.parametrize("passes", [1, 2, 10])
def test_variational_bayes_is_that_of_scikit_learn_pass_by_pass(passes: int) -> None:
    x = counts()
    ours, other = fitted(x, VB(passes=passes, tol=0.0)), theirs(x, passes)
    close(ours.components_, torch.from_numpy(other.components_), 1e-5)
    close(ours.transform(x), torch.from_numpy(other.transform(x.numpy())), 1e-5)
    assert ours.score(x) == pytest.approx(other.score(x.numpy()), rel=1e-9)
    assert ours.perplexity(x) == pytest.approx(other.perplexity(x.numpy()), rel=1e-8)


def test_every_pass_raises_the_bound() -> None:
    steps = np.diff(fitted(counts(), VB(passes=40, tol=0.0)).report_.objective)
    assert (steps > -1e-6).all()
    assert steps.sum() > 50.0


def test_one_topic_is_conjugate_bayes_and_its_bound_the_evidence() -> None:
    x = counts()
    model = LDA(topics=1, topic_word_prior=0.5).fit(x)
    close(model.components_[0], x.sum(0) + 0.5, 1e-12)
    before, after = Dirichlet.make(torch.full((WORDS,), 0.5)), Dirichlet.make(x.sum(0) + 0.5)
    evidence = float(after.log_partition - before.log_partition)
    assert model.score(x) == pytest.approx(evidence, rel=1e-6)


def test_the_bound_of_a_document_is_below_the_sum_over_all_its_topics() -> None:
    model = fitted(counts(), VB(passes=20), doc_topic_prior=0.7)
    words = [0, 3, 3, 7]
    x = torch.bincount(torch.tensor(words), minlength=WORDS)[None].double()
    # With topics all but known, p(words) is a sum over 3⁴ ways to give each word a topic.
    model._see({"topics": (1e7 * model.components_ - 1.0,)})
    mean = Dirichlet.make(model.components_).mean
    prior = torch.full((TOPICS,), 0.7, dtype=DTYPE)
    terms = []
    for ways in torch.cartesian_prod(*[torch.arange(TOPICS)] * 4):
        tally = torch.bincount(ways, minlength=TOPICS)
        moved = Dirichlet.make(prior + tally).log_partition - Dirichlet.make(prior).log_partition
        terms.append(moved + sum(mean[k, w].log() for k, w in zip(ways, words, strict=True)))
    truth, bound = float(torch.stack(terms).logsumexp(0)), float(model.log_prob(x)[0])
    assert truth - 0.5 < bound < truth


def test_whole_batches_at_full_rate_are_variational_bayes() -> None:
    x = counts()
    whole = fitted(x, VB(passes=3, tol=0.0))
    steps = fitted(x, SVI(batch_size=120, passes=1, delay=1.0))
    for _ in range(2):
        steps.step(Documents.of(x), num_data=120, rate=1.0)
    close(steps.components_, whole.components_, 1e-10)


def test_batches_come_near_the_whole() -> None:
    x = counts(800)
    whole = LDA(topics=TOPICS).fit(x)
    parts = LDA(topics=TOPICS, inference=SVI(batch_size=100, passes=10)).fit(x)
    assert parts.perplexity(x) < 1.02 * whole.perplexity(x)


def test_topics_are_at_least_as_good_as_those_of_scikit_learn() -> None:
    x = counts(200, seed=2)
    ours = LDA(topics=TOPICS).fit(x).score(x)
    other = LatentDirichletAllocation(TOPICS, max_iter=60, random_state=0).fit(x.numpy())
    assert ours > other.score(x.numpy()) - 1e-4 * abs(ours)


def test_sparse_tables_frames_and_arrays_are_the_same_data() -> None:
    x = counts()
    wanted = fitted(x, VB(passes=3)).components_
    for same in (
        x.numpy().astype(np.int64),
        sparse.csr_matrix(x.numpy()),
        sparse.coo_array(x.numpy()),
        pd.DataFrame(x.numpy(), columns=[f"word {i}" for i in range(WORDS)]),
    ):
        close(fitted(same, VB(passes=3)).components_, wanted, 1e-12)


def test_words_that_are_listed_twice_are_added_up_in_a_copy() -> None:
    twice = sparse.csr_matrix((np.array([1.0, 2.0]), np.array([3, 3]), np.array([0, 2])), (1, 5))
    assert Documents.of(twice).counts.tolist() == [3.0]
    assert twice.nnz == 2


def test_documents_are_taken_in_any_order() -> None:
    data = Documents.of(counts())
    which = torch.tensor([7, 5, 0, 100])
    part = data[which]
    assert torch.equal(part.lengths, data.lengths[which])
    again = torch.zeros(4, WORDS, dtype=DTYPE)
    for group in part.groups():
        for row, words, nums in zip(*group, strict=True):
            again[row].index_add_(0, words, nums)
    assert torch.equal(again, counts()[which])


def test_topics_have_words_and_documents_have_topics() -> None:
    x = counts()
    model = LDA(topics=TOPICS).fit(x)
    names = [f"w{i}" for i in range(WORDS)]
    tops = model.top_words(names, num=4)
    assert [len(one) for one in tops] == [4] * TOPICS
    assert tops[0][0] == f"w{int(model.components_[0].argmax())}"
    shares = model.transform(x)
    close(shares.sum(1), torch.ones(len(x), dtype=DTYPE))
    close(shares[5], torch.full((TOPICS,), 1 / TOPICS, dtype=DTYPE))
    assert torch.equal(model.predict(x), shares.argmax(1))
    lines = repr(model).splitlines()
    assert len(lines) <= 12
    assert max(map(len, lines)) <= 110


def test_draws_are_of_the_topics() -> None:
    model = LDA(topics=TOPICS).fit(counts())
    drawn = model.sample(4000, words=20, seed=1)
    assert bool((drawn.sum(1) == 20).all())
    expected = 20 * Dirichlet.make(model.components_).mean.mean(0)
    z_close(drawn[:, :5], expected[:5])


def test_files_hold_everything(tmp_path: Path) -> None:
    x = counts()
    model = LDA(topics=TOPICS, inference=SVI(batch_size=40, passes=2)).fit(x)
    model.save(tmp_path / "lda.safetensors")
    again = LDA.load(tmp_path / "lda.safetensors")
    assert torch.equal(again.log_prob(x), model.log_prob(x))
    assert again.score(x) == model.score(x)
    assert repr(again) == repr(model)


def test_bad_input_is_refused() -> None:
    x = counts().numpy()
    x[3, 4] = -1.0
    with pytest.raises(ValueError, match="document 3, word 4 has -1"):
        LDA(topics=2).fit(x)
    with pytest.raises(ValueError, match="document 3, word 4 has -1"):
        LDA(topics=2).fit(sparse.csr_matrix(x))
    x[3, 4] = math.nan
    with pytest.raises(ValueError, match="row 3, column 4: nan"):
        LDA(topics=2).fit(x)
    with pytest.raises(ValueError, match="no word in any document"):
        LDA(topics=2).fit(np.zeros((3, 4)))
    with pytest.raises(ValueError, match=r"never share words. Use inference=VB\(\)"):
        LDA(topics=2, inference=EM())
    with pytest.raises(ValueError, match="topic_word_prior is a number above 0"):
        LDA(topics=2, topic_word_prior=0.0)
    with pytest.raises(NotFittedError, match="no data"):
        LDA(topics=2).transform(counts())
    model = LDA(topics=2).fit(counts())
    with pytest.raises(ValueError, match="x has 7 words; the model was fitted to 30"):
        model.transform(counts()[:, :7])
    with pytest.raises(ValueError, match=r"components are \(2, 30\) numbers above 0"):
        model.fit(counts(), components=np.zeros((2, 30)))
