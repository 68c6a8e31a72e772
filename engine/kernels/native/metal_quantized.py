"""MLX's choice for quantized_matmul on Metal, as a function of one release's rules. Must not know releases.

Source: `QuantizedMatmul::eval_gpu`, `dispatch_qmv`, `qmv` and `qmm_splitk` of mlx/backend/metal/quantized.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.kernels.native.call import AppleChip, NativeCall, NativeKernel

TILE = 32
SPLIT_TARGET_GROUPS = 512
WIDE_TILE_ROWS = 5
WIDE_FROM_GENERATION = 15
QUAD_INPUT_SIZES = (64, 128)
QUAD_BITS = (2, 4, 8)


@dataclass(frozen=True, slots=True)
class VectorLimits:
    """First row count that leaves the vector kernel, by the larger of K and N: up to 2048, up to 4096, above."""

    small: int
    medium: int
    large: int

    def of(self, input_size: int, output_size: int) -> int:
        """The limit of one shape."""
        widest = max(input_size, output_size)
        return self.small if widest <= 2048 else self.medium if widest <= 4096 else self.large


@dataclass(frozen=True, slots=True)
class LimitsOfChips:
    """Limits of the chips of these generations; `size` is their letter, empty for any."""

    generations: range
    size: str
    limits: VectorLimits

    def fit(self, chip: AppleChip) -> bool:
        """True when this entry speaks of the chip."""
        return chip.generation in self.generations and self.size in ("", chip.size)


@dataclass(frozen=True, slots=True)
class QuantizedRules:
    """One release's rules. The first entry of `limits` that fits a chip counts.

    `has_wide`: several rows share a vector kernel. `has_split`: above the limit K may be summed in parts, which are
    whole tiles of 32 where `split_by_tile`, else whole groups only. `fast_by_bits`: the fast vector kernel wants K to
    be a multiple of a number that depends on the bits, else of 512.
    """

    limits: tuple[LimitsOfChips, ...]
    has_wide: bool
    has_split: bool
    split_by_tile: bool
    fast_by_bits: bool


def vector_limits(chip: AppleChip, rules: QuantizedRules) -> VectorLimits:
    """Where quantized_matmul leaves its vector kernels on this chip."""
    return next(entry.limits for entry in rules.limits if entry.fit(chip))


def split_parts(rows: int, input_size: int, output_size: int, part_multiple: int) -> int:
    """Parts of K that qmm_splitk sums apart, each a multiple of `part_multiple`; 1 means plain qmm."""
    tiles = -(-output_size // TILE) * -(-rows // TILE)
    parts = min(max(1, SPLIT_TARGET_GROUPS // tiles), input_size // part_multiple)
    while parts > 1 and input_size % (parts * part_multiple):
        parts -= 1
    return max(parts, 1)


def quantized_kernel(call: NativeCall, chip: AppleChip, rules: QuantizedRules) -> NativeKernel:
    """The kernel of a call on weights (N, K), transposed, without batch dimensions."""
    if call.rows >= vector_limits(chip, rules).of(call.input_size, call.output_size):
        return _above_the_limit(call, chip, rules)
    if call.input_size in QUAD_INPUT_SIZES and call.bits in QUAD_BITS:
        return NativeKernel("qmv_quad", True)
    wide = rules.has_wide and (chip.generation >= WIDE_FROM_GENERATION or call.mode != "affine")
    if wide and call.rows >= 2:
        tiles = -(-call.rows // WIDE_TILE_ROWS)
        return NativeKernel(f"qmv_wide-{-(-call.rows // tiles)}", True)
    multiple = _fast_multiple(call.bits) if rules.fast_by_bits else 512
    fast = call.output_size % 8 == 0 and call.input_size % multiple == 0
    return NativeKernel("qmv_fast" if fast else "qmv", True)


def _above_the_limit(call: NativeCall, chip: AppleChip, rules: QuantizedRules) -> NativeKernel:
    if chip.may_have_tensor_units:
        return NativeKernel("qmm or qmm_nax", False)
    if not rules.has_split:
        return NativeKernel("qmm", True)
    multiple = max(call.group_size, TILE) if rules.split_by_tile else call.group_size
    if multiple < 1:
        return NativeKernel("qmm or qmm_splitk", False)
    parts = split_parts(call.rows, call.input_size, call.output_size, multiple)
    return NativeKernel(f"qmm_splitk-{parts}" if parts > 1 else "qmm", True)


def _fast_multiple(bits: int) -> int:
    """K must be a multiple of what 32 lanes read in one go: one word each at 2 bits, else two."""
    values_of_a_word = {2: 16, 3: 8, 4: 8, 5: 8, 6: 4, 8: 4}.get(bits, 8)
    return values_of_a_word * (1 if bits == 2 else 2) * 32
