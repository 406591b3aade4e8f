"""The arithmetic of section 3.2: numba functions on arrays, one per step.

Legend (the paper's letters, the same in every function; also of :mod:`nplm_mpi.models.outputs.kernels`)

=========== ====================== ==================================================
K                                  examples of the update
V           rows of O              output words of this rank (V_i in the paper)
n m h                              order, features per word, hidden units
D                                  columns of O: 1 + h, + (n-1)m with direct connections
C           all words x m          word features
H d         h x (n-1)m, h          hidden layer weights and biases
O           V x D                  this rank's rows of [b | U | W]
contexts    K x (n-1)              the words before the one to predict, the nearest first
words       K                      the words to predict, w_t
x a         (n-1)m x K, h x K      features of the contexts, hidden activations
z           D x K                  [1 | a | x], what the output units see
y           V x K                  O z, in registers only: b + U a + W x
Q           K                      any number near max y, the same on all ranks
E           V x K                  exp(y - Q) of the own output units; after an update
                                   what its step takes of each row, S (p - 1[j = w_t])
S           K                      sum of exp(y - Q) over all words; p = exp(y - Q) / S
sums        2 x K                  s, this rank's share of S, and y of the target word
                                   where its owner is; over all ranks once added up
N           D x K                  sum_j E_j O_j over the own rows, then over all words
R           D x K                  O of the target word, from its owner
payload     2 + 2D x K             sums, N and R side by side: what an Allreduce carries
log_p       K                      log P(w_t | context)
dz          D x K                  dL/dz = R - N / S; its parts are dL/da and W's of dL/dx
step        K x D                  a row per example: O += E step is the ascent
pending     as step                the last update's step, while O has yet to take it
do dx       h x K, (n-1)m x K      dL/do, dL/dx
c                                  common scale of the weights, see below
=========== ====================== ==================================================

An example is a column (of contexts and step a row).  Rows of O, and unless examples are few
(:func:`nplm_mpi.machine.simd.is_few`) the rows of all arrays with a column per example, are padded to whole
vector registers; what stands in the padding is finite and of no consequence.  So are, among few, the columns
of the examples that an update has less than the model's largest.

Weight decay shrinks every weight (C, H, U, W; not b and d) by the same factor at
each update.  The factors are kept in one number: weight = c x stored value.  So
decay costs nothing per weight and loses nothing to rounding, and the functions
below get c where they read a weight and a step already divided by c where they
change one.

No function here communicates, reads files or knows configuration.
"""

from nplm_mpi.machine.blas import add_matmul_nn, add_matmul_nt, add_matmul_tn
from nplm_mpi.machine.fast_exp import tanh
from nplm_mpi.machine.jit import njit, options, options_for_sums
from nplm_mpi.machine.simd import use_full_registers

# Loops stand in place of assignments of arrays to arrays and of arithmetic with them, for which numba
# compiles texts of errors about their shapes: three seconds of a first start.


@njit(**options)
def look_up_features(C, contexts, c, x):
    """1(a): x = (C(w_{t-1}), ..., C(w_{t-n+1})), the nearest word first; word -1 is no word: zeros."""
    K, positions = contexts.shape
    m = C.shape[1]
    for k in range(K):
        for i in range(positions):
            w = contexts[k, i]
            for f in range(m):
                x[i * m + f, k] = c * C[w, f] if w >= 0 else 0


@njit(**options_for_sums)
def hidden_units(H, d, x, c, a):
    """1(b): o = d + H x, a = tanh(o)."""
    use_full_registers()
    h, K = a.shape
    if K == 1:
        one_x = x.reshape(-1)
        for j in range(h):
            o = H.dtype.type(0)
            for i in range(H.shape[1]):
                o += H[j, i] * one_x[i]
            a[j, 0] = o
    elif h > 0:
        add_matmul_nn(H, x, 0.0, a)
    for j in range(h):
        for k in range(K):
            a[j, k] = tanh(d[j] + c * a[j, k])


@njit(**options)
def output_inputs(a, x, direct, c, z):
    """z = [1 | c a | c x]: what the stored rows of O are multiplied with to give y."""
    h, K = a.shape
    z[0, :] = 1
    for j in range(h):
        for k in range(K):
            z[1 + j, k] = c * a[j, k]
    if direct:
        for i in range(x.shape[0]):
            for k in range(K):
                z[1 + h + i, k] = c * x[i, k]


@njit(**options)
def inputs_of_outputs(C, H, d, contexts, direct, c, x, a, z):
    """1(a) and 1(b), all that comes before the output units."""
    look_up_features(C, contexts, c, x)
    hidden_units(H, d, x, c, a)
    output_inputs(a, x, direct, c, z)


@njit(**options)
def hidden_gradient(H, a, dz, direct, c, do, dx):
    """2(c): dL/do = (1 - a^2) dL/da; dL/dx = W's part + H' dL/do, with the old H."""
    use_full_registers()
    h, K = a.shape
    for j in range(h):
        for k in range(K):
            do[j, k] = (1 - a[j, k] * a[j, k]) * (c * dz[1 + j, k])
    for i in range(dx.shape[0]):
        for k in range(K):
            dx[i, k] = dz[1 + h + i, k] if direct else 0
    if K == 1:
        one_dx = dx.reshape(-1)
        for j in range(h):
            g = do[j, 0]
            for i in range(H.shape[1]):
                one_dx[i] += g * H[j, i]
    elif h > 0:
        add_matmul_tn(H, do, 1.0, dx)
    for i in range(dx.shape[0]):
        for k in range(K):
            dx[i, k] *= c


@njit(**options)
def ascend_hidden(H, d, x, do, examples, rate_d, rate):
    """2(c): d += eps dL/do, H += eps dL/do x' over the examples.  ``do`` is overwritten."""
    use_full_registers()
    h = do.shape[0]
    for j in range(h):
        for k in range(examples):
            d[j] += rate_d * do[j, k]
            do[j, k] *= rate
    if do.shape[1] == 1:
        one_x = x.reshape(-1)
        for j in range(h):
            g = do[j, 0]
            for i in range(H.shape[1]):
                H[j, i] += g * one_x[i]
    elif h > 0:
        add_matmul_nt(do[:, :examples], x[:, :examples], 1.0, H)


@njit(**options)
def ascend_features(C, contexts, dx, rate):
    """2(d): C(w_{t-k}) += eps dL/dx(k); a word that stands twice in a context gets both."""
    K, positions = contexts.shape
    m = C.shape[1]
    for k in range(K):
        for i in range(positions):
            w = contexts[k, i]
            if w >= 0:
                for f in range(m):
                    C[w, f] += rate * dx[i * m + f, k]


@njit(**options)
def ascend(C, H, d, contexts, x, do, dx, rate_d, rate):
    """2(c) and 2(d), what remains of them: :func:`ascend_hidden`, :func:`ascend_features`."""
    ascend_hidden(H, d, x, do, contexts.shape[0], rate_d, rate)
    ascend_features(C, contexts, dx, rate)
