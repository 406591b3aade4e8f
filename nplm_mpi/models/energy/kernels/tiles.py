"""Tiles of the energy model's hidden units held in vector registers, generated as LLVM code.

A tile is :data:`TILE_VECTORS` vectors of candidates in K contexts; what is computed, and the
letters, stand in :mod:`nplm_mpi.models.energy.kernels`.
"""

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from nplm_mpi.machine.jit import IN_ORDER
from nplm_mpi.machine.simd import FEATURES, VECTOR_BYTES, Vectors, exp, widen

_HAS_RCP14 = bool(FEATURES.get("avx512f"))
# Vectors of a tile: as many as leave registers for the sums of the backward pass.
TILE_VECTORS = 4 if VECTOR_BYTES == 64 else 2


def tile_rows(itemsize: int) -> int:
    """Candidates of a tile."""
    return TILE_VECTORS * VECTOR_BYTES // itemsize


class _Tile(Vectors):
    """Emits r for vectors of candidates."""

    def r(self, u, w, sums):
        """1 / (1 + u w), or 1 / (1 + exp(u + w))."""
        one = self.constant(1.0)
        if not sums:
            return self.reciprocal(self.multiply_add(u, w, one))
        largest = self.constant(1e37 if isinstance(self.real, ir.FloatType) else 1e300)
        product = exp(self.builder, self.builder.fadd(u, w), self.vector)
        too_large = self.builder.fcmp_ordered(">", product, largest)
        return self.reciprocal(self.builder.fadd(self.builder.select(too_large, largest, product), one))

    def reciprocal(self, x):
        """1 / x to the last digit or two."""
        if not (_HAS_RCP14 and isinstance(self.real, ir.FloatType)):
            return self.builder.fdiv(self.constant(1.0), x)
        # 14 bits, and one step of Newton's: a fifth of the time of a division.
        mask = ir.IntType(16)
        function = cgutils.get_or_insert_function(
            self.builder.module,
            ir.FunctionType(self.vector, [self.vector, self.vector, mask]),
            "llvm.x86.avx512.rcp14.ps.512",
        )
        first = self.builder.call(function, [x, ir.Constant(self.vector, None), mask(-1)])
        missing = self.multiply_add(self.builder.fneg(x), first, self.constant(1.0))
        return self.multiply_add(first, missing, first)


def _forward_tile(sums):
    """y of one tile in K contexts; ``half_bias`` is half of what y would be without hidden units' r."""

    @intrinsic
    def emit(typingctx, like, K, h, w, w_row, v, v_row, u, u_row, half_bias, y, y_row):
        def codegen(context, builder, signature, args):
            widen(builder)
            _, K, h, w, w_row, v, v_row, u, u_row, half_bias, y, y_row = args
            tile = _Tile(builder, like)
            word = K.type
            offsets = [word(n * VECTOR_BYTES) for n in range(TILE_VECTORS)]
            total = [cgutils.alloca_once(builder, tile.vector) for _ in offsets]
            with cgutils.for_range(builder, K) as contexts:
                for place, offset in zip(total, offsets, strict=True):
                    builder.store(tile.load(builder.add(half_bias, offset)), place)
                here = builder.add(u, builder.mul(contexts.index, word(tile.size)))
                with cgutils.for_range(builder, h) as units:
                    one_u = tile.load_everywhere(builder.add(here, builder.mul(units.index, u_row)))
                    w_j = builder.add(w, builder.mul(units.index, w_row))
                    v_j = builder.add(v, builder.mul(units.index, v_row))
                    for place, offset in zip(total, offsets, strict=True):
                        r = tile.r(one_u, tile.load(builder.add(w_j, offset)), sums)
                        weight = tile.load(builder.add(v_j, offset))
                        builder.store(tile.multiply_add(weight, r, builder.load(place)), place)
                row = builder.add(y, builder.mul(contexts.index, y_row))
                for place, offset in zip(total, offsets, strict=True):
                    value = builder.load(place)
                    tile.store(builder.fadd(value, value), builder.add(row, offset))
            return context.get_dummy_value()

        return types.void(like, *([types.intp] * 11)), codegen

    @njit(nogil=True, **IN_ORDER)
    def run(like, K, h, w, w_row, v, v_row, u, u_row, half_bias, y, y_row):
        emit(like, K, h, w, w_row, v, v_row, u, u_row, half_bias, y, y_row)

    return run


def _backward_tile(sums):
    """Adds to T and R of one tile, and to do (h x K x one vector) whatever lane it stands in."""

    @intrinsic
    def emit(typingctx, like, K, h, w, w_row, v, v_row, u, u_row, c, c_row, T, R, t_row, do, do_row):
        def codegen(context, builder, signature, args):
            widen(builder)
            _, K, h, w, w_row, v, v_row, u, u_row, c, c_row, T, R, t_row, do, do_row = args
            tile = _Tile(builder, like)
            word = K.type
            offsets = [word(n * VECTOR_BYTES) for n in range(TILE_VECTORS)]
            sum_T = [cgutils.alloca_once(builder, tile.vector) for _ in offsets]
            sum_R = [cgutils.alloca_once(builder, tile.vector) for _ in offsets]
            with cgutils.for_range(builder, h) as units:
                j = units.index
                w_j, v_j, T_j, R_j, u_j, do_j = (
                    builder.add(base, builder.mul(j, row))
                    for base, row in (
                        (w, w_row),
                        (v, v_row),
                        (T, t_row),
                        (R, t_row),
                        (u, u_row),
                        (do, do_row),
                    )
                )
                all_w = [tile.load(builder.add(w_j, offset)) for offset in offsets]
                all_v = [tile.load(builder.add(v_j, offset)) for offset in offsets]
                for places, base in ((sum_T, T_j), (sum_R, R_j)):
                    for place, offset in zip(places, offsets, strict=True):
                        builder.store(tile.load(builder.add(base, offset)), place)
                with cgutils.for_range(builder, K) as contexts:
                    k = contexts.index
                    one_u = tile.load_everywhere(builder.add(u_j, builder.mul(k, word(tile.size))))
                    c_k = builder.add(c, builder.mul(k, c_row))
                    do_place = builder.add(do_j, builder.mul(k, word(VECTOR_BYTES)))
                    do_k = tile.load(do_place)
                    for n, offset in enumerate(offsets):
                        one_c = tile.load(builder.add(c_k, offset))
                        r = tile.r(one_u, all_w[n], sums)
                        slope = tile.multiply_add(builder.fneg(r), r, r)
                        change = builder.fmul(one_c, slope)
                        builder.store(builder.fadd(change, builder.load(sum_T[n])), sum_T[n])
                        builder.store(tile.multiply_add(one_c, r, builder.load(sum_R[n])), sum_R[n])
                        do_k = tile.multiply_add(all_v[n], change, do_k)
                    tile.store(do_k, do_place)
                for places, base in ((sum_T, T_j), (sum_R, R_j)):
                    for place, offset in zip(places, offsets, strict=True):
                        tile.store(builder.load(place), builder.add(base, offset))
            return context.get_dummy_value()

        return types.void(like, *([types.intp] * 15)), codegen

    @njit(nogil=True, **IN_ORDER)
    def run(like, K, h, w, w_row, v, v_row, u, u_row, c, c_row, T, R, t_row, do, do_row):
        emit(like, K, h, w, w_row, v, v_row, u, u_row, c, c_row, T, R, t_row, do, do_row)

    return run


forward_products, forward_sums = _forward_tile(False), _forward_tile(True)
backward_products, backward_sums = _backward_tile(False), _backward_tile(True)
