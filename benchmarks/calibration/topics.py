"""A tabulated task: a topic model by online variational Bayes on documents with known topics.

This is the first hyperparameter experiment of the paper on OCBO. It tunes the size of mini-batches,
and the decay and offset of the learning rate ``(offset + t)^-decay``, of Online LDA (Hoffman, Blei
and Bach, 2010; scikit-learn's ``LatentDirichletAllocation``). The grid is from the paper's table 5.
The paper uses the 20 newsgroups, which would have to be downloaded. Here documents are drawn from
the model: the words are the cells of a square, and the topics are uniform distributions on its rows
and columns (the bars of Griffiths and Steyvers, 2004). The learner knows the true number of topics
and the true concentration of their weights. The prior of words in a topic is scikit-learn's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from sklearn.decomposition import LatentDirichletAllocation
from torch import Tensor

from benchmarks.delay.value_tables import cartesian


@dataclass(frozen=True)
class Corpus:
    """Counts of words, ``documents x words``, and each word's true probability in its document."""

    counts: np.ndarray
    probabilities: np.ndarray

    def true_perplexity(self) -> float:
        """The perplexity of the true distributions, a lower bound of any model's expectation."""
        surprise = -np.log(
            self.probabilities, where=self.counts > 0, out=np.zeros(self.counts.shape)
        )
        return float(np.exp((self.counts * surprise).sum() / self.counts.sum()))


def bars(side: int) -> np.ndarray:
    """The topics, ``2 side x side^2``: uniform on each row and each column of a square."""
    rows = np.kron(np.eye(side), np.full((1, side), 1.0 / side))
    columns = np.kron(np.full((1, side), 1.0 / side), np.eye(side))
    return np.concatenate([rows, columns])


@dataclass(frozen=True)
class TopicTask:
    """Negative perplexity of held-out documents after one pass over the training documents.

    Args:
        log_batch_sizes: Logarithms to base 2 of the number of documents in a mini-batch.
        decays: Exponents of the learning rate.
        log_offsets: Logarithms to base 2 of the offset of the learning rate.
        side: Words are the cells of a square with this side.
        num_documents: Number of training documents.
        num_held_out: Number of held-out documents.
        num_words: Number of words in each document.
        concentration: Concentration of the Dirichlet distribution of a document's topics.
        seed: Seed of the documents and of the learner's start.
    """

    log_batch_sizes: tuple[float, ...] = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0)
    decays: tuple[float, ...] = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    log_offsets: tuple[float, ...] = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
    side: int = 5
    num_documents: int = 1000
    num_held_out: int = 200
    num_words: int = 50
    concentration: float = 0.2
    seed: int = 0

    @property
    def name(self) -> str:
        return "topics"

    def choices(self) -> Tensor:
        return cartesian(self.log_batch_sizes, self.decays, self.log_offsets)

    def data_key(self) -> str:
        """See `TabulatedTask`: the documents are drawn."""
        return ""

    def corpora(self) -> tuple[Corpus, Corpus]:
        """The training documents and the held-out documents."""
        rng = np.random.default_rng(self.seed)
        topics = bars(self.side)
        found = []
        for num in (self.num_documents, self.num_held_out):
            weights = rng.dirichlet(np.full(len(topics), self.concentration), num)
            probabilities = weights @ topics
            found.append(Corpus(rng.multinomial(self.num_words, probabilities), probabilities))
        return found[0], found[1]

    def compute(self) -> Tensor:
        """See `TabulatedTask`. This takes two minutes on one core."""
        train, held_out = self.corpora()
        return torch.tensor(
            [
                -self.model(*choice).fit(train.counts).perplexity(held_out.counts)
                for choice in self.choices().tolist()
            ],
            dtype=torch.double,
        )

    def model(
        self, log_batch_size: float, decay: float, log_offset: float
    ) -> LatentDirichletAllocation:
        """The learner with the hyperparameters of one choice."""
        return LatentDirichletAllocation(
            n_components=2 * self.side,
            doc_topic_prior=self.concentration,
            learning_method="online",
            batch_size=round(2.0**log_batch_size),
            learning_decay=decay,
            learning_offset=2.0**log_offset,
            max_iter=1,
            random_state=self.seed,
        )
