"""``--softmax sampled``: gradients from some words instead of all (Bengio & Senecal 2003).

The gradient of log P(w_t | context) is that of y_{w_t} minus the mean of all words'
gradients of y under P.  The mean is estimated from words drawn from q (see
:mod:`nplm_mpi.models.outputs.proposal`), by biased importance sampling: word j counts exp(y_j) / q(j),
and the weights are divided by their sum.
The target word itself is not left to chance, so that

    S = exp(y_{w_t}) + 1/n sum_{j != w_t} exp(y_j) / q(j) over n draws

takes the place of the sum over all words.  All ranks draw the same words, once for
all examples of an update; each computes its own of them.

The draws are enough if they are worth enough: the effective sample size of an example's
weights r is (sum r)^2 / sum r^2.  While its mean over the examples is below what was
asked for, as many again are drawn; where that would be more than a third of all words, or
:data:`MOST_DRAWS` for each word, or where numbers overflow, the update is exact.  The number to
begin with follows what was needed.

The ranks' model stays the exact one, which evaluates, saves and loads as ever.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from nplm_mpi.machine.aligned import aligned_rows
from nplm_mpi.models.energy import kernels as energy_kernels
from nplm_mpi.models.energy.kernels.tiles import tile_rows
from nplm_mpi.models.energy.model import EnergyModel
from nplm_mpi.models.interface import AnyModel
from nplm_mpi.models.network import kernels
from nplm_mpi.models.network.model import Model
from nplm_mpi.models.outputs import kernels as output_kernels
from nplm_mpi.models.outputs.proposal import Proposal

# Where so large a share of all words would be drawn, the update is exact.
EXACT_FROM = 1 / 3
# And where so many draws for each word of the vocabulary were not worth enough.
MOST_DRAWS = 4
# Draws are changed by this much after an update that had enough, or too few.
FEWER, MORE = 0.98, 1.25
# Updates after which the energy model's own rows take their decay.
DECAY_EVERY = 16


@dataclass
class Draws:
    """The words of an update on one rank.

    Attributes
    ----------
    rows : (R,) array of int
        The own ones among drawn and target words, ascending, as rows of this rank.
    weight : (R,) array
        How often each was drawn, divided by n q; 0 for a target that was not.
    times : (R,) array
        How often each was drawn, at least 1.
    targets : (K,) int32 array
        Where each example's target is among ``rows``; -1 where another rank owns it.
    """

    rows: np.ndarray
    weight: np.ndarray
    times: np.ndarray
    targets: np.ndarray


class SampledUpdates:
    """Updates of a model from sampled words; the interface is that of the network's ``Model.updates``.

    Parameters
    ----------
    model : AnyModel
        Of the paper: the network of section 2 or the energy model.
    proposal : Proposal
        The same on all ranks.
    seed : int
    samples : int
        Draws for the first update, and the fewest for any.
    effective : float
        The effective sample size asked for, as the mean over an update's examples.

    Attributes
    ----------
    draws : int
        With how many draws the next update begins.
    exact : int
        Updates that were made exactly, because draws would have cost more.
    """

    def __init__(
        self, model: AnyModel, proposal: Proposal, seed: int, samples: int, effective: float
    ) -> None:
        self.model, self.proposal, self.seed = model, proposal, seed
        self.samples, self.effective = samples, effective
        self.draws, self.made, self.exact, self.owed = samples, 0, 0, 1.0

    def progress(self) -> dict[str, Any]:
        """What, beside the model, later updates depend on."""
        return {"draws": self.draws, "made": self.made, "exact": self.exact, "owed": self.owed}

    def go_on_from(self, progress: dict[str, Any]) -> None:
        """Be where the sampler was whose :meth:`progress` this is; nothing for a new one."""
        for name in self.progress().keys() & progress.keys():
            setattr(self, name, progress[name])

    def updates(self, contexts: np.ndarray, words: np.ndarray, rates: np.ndarray) -> np.ndarray:
        """As :meth:`nplm_mpi.models.network.model.Model.updates`; the log probabilities are estimates."""
        K, log_p = self.model.examples_per_update, np.empty(len(words))
        for i, rate in enumerate(rates):
            part = slice(i * K, (i + 1) * K)
            log_p[part] = self.update(contexts[part], words[part], float(rate))
        return log_p

    def update(self, contexts: np.ndarray, words: np.ndarray, rate: float) -> np.ndarray:
        """One update of K examples. Collective: an Allreduce of 3 K double numbers for each round of draws,
        and one with the gradients."""
        self.model.flush()
        random = np.random.Generator(np.random.Philox(np.random.SeedSequence([self.seed, 7, self.made])))
        self.made += 1
        before = contexts[:, 0]
        q = self.proposal.probabilities(before)
        step = _EnergyStep(self, contexts) if isinstance(self.model, EnergyModel) else _Step(self, contexts)
        V = self.model.parameters.V
        drawn = self.proposal.draw(before, self.draws, random)
        # How many were drawn ends this, whatever the numbers are: a size may be NaN, or never large enough.
        while len(np.unique(drawn)) <= EXACT_FROM * V and len(drawn) <= MOST_DRAWS * max(V, self.draws):
            found = self._choose(drawn, q, words)
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # log_p tells of it
                S, size = self._sums(step.outputs(found), found, step)
                if size >= min(self.effective, len(drawn)):
                    self._adjust(len(drawn), size)
                    self.model.Q = float(np.mean(step.Q + np.log(S)))
                    step.ascend(found, S, words, rate)
                    return np.minimum(step.target - step.Q - np.log(S), 0.0)
            if math.isnan(size):
                break
            drawn = np.concatenate([drawn, self.proposal.draw(before, len(drawn), random)])
        self.exact += 1
        return self.model.update(contexts, words, rate)

    def _adjust(self, drawn: int, size: float) -> None:
        """How many draws the next update begins with, after one that needed so many."""
        enough = size >= 1.1 * self.effective and drawn <= self.draws
        self.draws = max(
            self.samples, int(self.draws * FEWER) if enough else min(drawn, int(self.draws * MORE))
        )

    def _choose(self, drawn: np.ndarray, q: np.ndarray, words: np.ndarray) -> Draws:
        """This rank's rows of the drawn words and the targets."""
        p = self.model.parameters
        every = np.concatenate([drawn, words])
        every = every[(every >= p.start) & (every < p.stop)]
        rows = np.unique(every)
        mine = drawn[(drawn >= p.start) & (drawn < p.stop)]
        times = np.bincount(np.searchsorted(rows, mine), minlength=len(rows)).astype(np.float64)
        weight = times / (len(drawn) * q[rows])
        place = np.searchsorted(rows, words)
        inside = np.minimum(place, max(len(rows) - 1, 0))
        owned = (rows[inside] == words) if len(rows) else np.zeros(len(words), bool)
        targets = np.where(owned, place, -1).astype(np.int32)
        return Draws(rows - p.start, weight, np.maximum(times, 1), targets)

    def _sums(self, y: np.ndarray, found: Draws, step: "_Step | _EnergyStep") -> tuple[np.ndarray, float]:
        """S of each example, and the mean effective sample size. Collective: one Allreduce, or three.

        ``y`` (R, K) becomes each word's part of S.
        """
        K = y.shape[1]
        k = np.flatnonzero(found.targets >= 0)
        at = found.targets[k], k
        target = y[at].copy()
        if math.isnan(self.model.Q):
            step.Q = y.max(axis=0, initial=-np.inf)
            self.model.row.allreduce_max(step.Q)
        for maximum_is_known in (False, True):
            if maximum_is_known:  # as well as numbers can do; where they overflow, S says so
                step.Q = y.max(axis=0, initial=-np.inf)
                self.model.row.allreduce_max(step.Q)
            parts = np.exp(y - step.Q)
            own = parts[at]
            parts *= found.weight[:, None].astype(y.dtype)
            parts[at] = 0
            totals = np.zeros((4, K))
            totals[0] = parts.sum(axis=0, dtype=np.float64)
            totals[1] = (parts.astype(np.float64) ** 2 / found.times[:, None]).sum(axis=0)
            totals[2, k], totals[3, k] = own, target
            self.model.row.allreduce_sum(totals)
            S = totals[0] + totals[2]
            if np.all((S > 1e-25) & (S < 1e25)):
                break
        y[:] = parts
        y[at] = own
        step.target = totals[3]
        size = np.divide(totals[0] ** 2, totals[1], out=np.ones(K), where=totals[1] > 0)
        return S, float(size.mean())


class _Step:
    """The network's part of an update; the letters are those of :mod:`nplm_mpi.models.network.kernels`."""

    def __init__(self, sampled: SampledUpdates, contexts: np.ndarray) -> None:
        model = sampled.model
        assert isinstance(model, Model)
        p, self.model, self.contexts = model.parameters, model, contexts
        self.K = len(contexts)
        w, outputs = model.workspace(self.K), model.outputs.workspace(self.K)
        self.w, self.outputs_w = w, outputs
        kernels.inputs_of_outputs(
            p.C, p.H, p.d, contexts, p.shape.direct, p.dtype.type(p.scale), w.x, w.a, outputs.z
        )
        self.Q = np.full(self.K, 0.0 if math.isnan(model.Q) else model.Q, p.dtype)
        self.target = np.zeros(self.K)

    def outputs(self, found: Draws) -> np.ndarray:
        """1(c) for some rows: y (R, K)."""
        D = self.model.parameters.shape.columns
        self.O = self.model.parameters.O[found.rows]
        self.E = self.O[:, :D] @ self.outputs_w.z[:D, : self.K]
        return self.E

    def ascend(self, found: Draws, S: np.ndarray, words: np.ndarray, rate: float) -> None:
        """2(a) to 2(d); E holds each word's part of S. Collective: one Allreduce."""
        model, body, w, K = self.model, self.w, self.outputs_w, self.K
        p, D, E = model.parameters, model.parameters.shape.columns, self.E
        rates = model._rates(K, rate)
        w.payload[:] = 0
        w.N[:, :K] = self.O[:, :D].T @ E
        k = np.flatnonzero(found.targets >= 0)
        w.R[:, k] = self.O[found.targets[k], :D].T
        model.row.allreduce_sum(w.payload)
        w.sums[0] = 1
        w.sums[0, :K] = S
        output_kernels.output_gradient(w.sums, w.N, w.R, w.dz)
        output_kernels.output_step(w.sums, w.z, found.targets, rates.biases, rates.outputs, E, w.step)
        kernels.hidden_gradient(p.H, body.a, w.dz, p.shape.direct, p.dtype.type(p.scale), body.do, body.dx)
        p.O[found.rows] = self.O + E @ w.step[:K]
        kernels.ascend_hidden(p.H, p.d, body.x, body.do, K, rates.biases, rates.weights)
        kernels.ascend_features(p.C, self.contexts, body.dx, rates.weights)
        model._shrink(rates.scale)


class _EnergyStep:
    """The energy model's part of an update; the letters are those of :mod:`.energy.kernels`."""

    def __init__(self, sampled: SampledUpdates, contexts: np.ndarray) -> None:
        model = sampled.model
        assert isinstance(model, EnergyModel)
        p, self.model, self.sampled, self.contexts = model.parameters, model, sampled, contexts
        self.K = len(contexts)
        w = self.w = model._workspace(self.K)
        energy_kernels.own_features(p.C, p.start, contexts, w.x)
        model.comm.allreduce_sum(w.x)
        largest = energy_kernels.context_parts(p.Hx, p.d, w.x, w.u)
        self.sums = bool(largest > energy_kernels.LARGEST[p.dtype])
        if not self.sums:
            energy_kernels.exponentials(w.u)
        self.Q = np.full(self.K, 0.0 if math.isnan(model.Q) else model.Q, p.dtype)
        self.target = np.zeros(self.K)

    def outputs(self, found: Draws) -> np.ndarray:
        """y = -E of some candidates, (R, K)."""
        p = self.model.parameters
        h, R, dtype = p.shape.hidden, len(found.rows), p.dtype
        tile = tile_rows(dtype.itemsize)
        columns = -(-R // tile) * tile
        self.C, self.g = p.C[found.rows], aligned_rows(h, columns, dtype)
        largest = energy_kernels.candidate_parts(p.H0, self.C, self.g)
        if not self.sums and largest > energy_kernels.LARGEST[dtype]:
            np.log(self.w.u, out=self.w.u)
            self.sums = True
        if not self.sums:
            energy_kernels.exponentials(self.g)
        if p.shape.per_word_v:
            self.v = aligned_rows(h, columns, dtype)
            self.v[:, :R] = p.v_columns[:, found.rows]
        else:
            self.v = p.v_of_tiles()
        half = np.zeros(columns, dtype)
        energy_kernels.half_biases(p.b[found.rows], self.v, not p.shape.per_word_v, half)
        self.y = aligned_rows(self.K, columns, dtype)
        energy_kernels.outputs(self.g, self.v, self.w.u, half, self.sums, self.y)
        self.E = np.ascontiguousarray(self.y[:, :R].T)
        return self.E

    def ascend(self, found: Draws, S: np.ndarray, words: np.ndarray, rate: float) -> None:
        """All gradients and changes; E holds each word's part of S. Collective: one Allreduce."""
        model, w, p = self.model, self.w, self.model.parameters
        R, number = len(found.rows), p.dtype.type
        T, R_sums = np.zeros_like(self.g), np.zeros_like(self.g)
        c = self.E / S.astype(p.dtype)
        k = np.flatnonzero(found.targets >= 0)
        c[found.targets[k], k] -= 1
        total = c.sum(axis=1)
        self.y[:] = 0
        self.y[:, :R] = c.T
        energy_kernels.hidden_sums(self.g, self.v, w.u, self.y, self.sums, T, R_sums, model._lanes, w.do)
        energy_kernels.candidate_gradients(self.v, T, R)
        energy_kernels.candidate_weights_gradient(T, self.C, w.dH0)
        if not p.shape.per_word_v:
            energy_kernels.shared_v_gradient(R_sums, total, R, w.dv)
        model.comm.allreduce_sum(w.payload)
        energy_kernels.context_gradients(p.Hx, w.do, w.dx)

        eps, keep = number(rate), number(1 - self.K * rate * model.decay)
        one = number(1)
        if p.shape.per_word_v:
            energy_kernels.ascend_v(self.v, R_sums, total, R, one, eps)
            p.v_columns[:, found.rows] = self.v[:, :R]
        else:
            p.shared_v[:] = keep * p.shared_v + eps * w.dv
        p.b[found.rows] += eps * total
        energy_kernels.ascend_candidates(self.C, p.H0, T, one, eps)
        p.C[found.rows] = self.C
        energy_kernels.ascend_own_features(p.C, p.start, self.contexts, w.dx, eps)
        energy_kernels.ascend_hidden(p.H0, p.Hx, p.d, w.dH0, w.do, w.x, keep, eps)
        self._decay(float(keep))

    def _decay(self, keep: float) -> None:
        """Shrink the own rows: all of them, so not at every update."""
        sampled, p = self.sampled, self.model.parameters
        sampled.owed *= keep
        if sampled.made % DECAY_EVERY == 0:
            p.C *= p.dtype.type(sampled.owed)
            if p.shape.per_word_v:
                p.v_columns *= p.dtype.type(sampled.owed)
            sampled.owed = 1.0
