"""Updates one after another in a single compiled function, see :mod:`nplm_mpi.models.network.rapid`."""

import numpy as np

from nplm_mpi.machine.clock import seconds
from nplm_mpi.machine.jit import njit, options
from nplm_mpi.machine.shared_sums import sum_over_ranks
from nplm_mpi.machine.simd import use_full_registers
from nplm_mpi.models.network import kernels
from nplm_mpi.models.outputs import kernels as output_kernels


@njit(**options)
def rapid_updates(
    C, H, d, O, E, pending, contexts, words, direct, few, rates, limits, workspace, Q, upwards,
    slots, marks, place, log_p,
):  # fmt: skip
    """As many updates as there are rates.

    Parameters
    ----------
    C, H, d, O, E, direct
        As in :mod:`nplm_mpi.models.network.kernels`.
    pending : (K or 0, >= D) array
        The step that O has yet to take.
    contexts, words : (updates x K, n-1), (updates x K,) arrays
        The words as rows of O.
    few : tuple or None
        See :func:`nplm_mpi.models.outputs.kernels.few_numbers`.
    rates : (updates, 4) array
        eps; that of the weights; that of the outputs; c before the update.
    limits : (2,) array
        Of S.
    workspace : tuple of arrays
        x, a, z, dz, do, dx, step, Q and the payload of the workspaces of body and outputs.
    Q : float
    upwards : bool
        Of the last pass.
    slots, marks, place
        See :func:`nplm_mpi.machine.shared_sums.sum_over_ranks`.
    log_p : (updates x K,) array
        Out.

    Returns
    -------
    updates : int
        How many were made.  If not all, Q was too far off for the next one, which is to
        be made in another way; O has taken the pending step.
    Q : float
    upwards : bool
    spent : float
        Seconds in sums over ranks.
    """
    use_full_registers()
    x, a, z, dz, do, dx, step, q, payload = workspace
    updates, K, D = rates.shape[0], words.shape[0] // rates.shape[0], dz.shape[0]
    sums, N, R = payload[:2], payload[2 : 2 + D], payload[2 + D :]
    flat = payload.reshape(-1)
    room = np.empty(2, np.int64)
    spent = 0.0
    for i in range(updates):
        part = slice(i * K, i * K + K)
        some, own = contexts[part], words[part]
        eps, weights, outputs, c = rates[i]
        kernels.inputs_of_outputs(C, H, d, some, direct, c, x, a, z)
        q[:] = Q
        upwards = not upwards
        output_kernels.output_units_of_any(few, O, D, E, pending, z, q, own, upwards, sums, N, R)
        start = seconds(room)
        sum_over_ranks(flat, slots, marks, place)
        spent += seconds(room) - start
        good, mean = output_kernels.likelihood_and_gradient(
            sums, N, R, q, limits[0], limits[1], log_p[part], dz
        )
        if not good:
            return i, Q, upwards, spent
        Q = mean
        output_kernels.output_step(sums, z, own, eps, outputs, E, step)
        kernels.hidden_gradient(H, a, dz, direct, c, do, dx)
        pending = step
        kernels.ascend(C, H, d, some, x, do, dx, eps, weights)
    return updates, Q, upwards, spent
