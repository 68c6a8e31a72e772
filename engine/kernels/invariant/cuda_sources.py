"""CUDA sources of the invariant kernels. Must not know MLX; `cuda` builds and calls them.

Sums are written so that the number of rows cannot show in them:

- halves: every row goes through the same tensor-core instruction (m16n8k16, f32 accumulators), alone or with others; a
  row is one line of the instruction's tile and its sum is taken over K in one order: four warps take every fourth block
  of 32, their sums are added from the first warp to the last. A larger row tile repeats the instruction, nothing else.
- float32: one warp an output, each lane every 32nd run of eight elements in rising order, then a fixed exchange.
- attention: one warp a (row, query head), keys in tiles of 32 from the row's first key on.
"""

from __future__ import annotations

WARPS = 4
TILE_COLUMNS = 32
TILE_ROWS = 16

HEADER = """
#define NEGATIVE_INFINITY __int_as_float(0xff800000)

__device__ inline unsigned pack_pair(__half low, __half high) {
  __half2 pair = __halves2half2(low, high);
  return *reinterpret_cast<unsigned*>(&pair);
}
__device__ inline unsigned pack_pair(__nv_bfloat16 low, __nv_bfloat16 high) {
  __nv_bfloat162 pair = __halves2bfloat162(low, high);
  return *reinterpret_cast<unsigned*>(&pair);
}
__device__ inline void round_to(float value, __half& out) { out = __float2half_rn(value); }
__device__ inline void round_to(float value, __nv_bfloat16& out) { out = __float2bfloat16_rn(value); }
__device__ inline void round_to(float value, float& out) { out = value; }
__device__ inline float widen(float value) { return value; }
__device__ inline float widen(__half value) { return __half2float(value); }
__device__ inline float widen(__nv_bfloat16 value) { return __bfloat162float(value); }

__device__ inline void multiply_tile(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2], __half) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ inline void multiply_tile(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2], __nv_bfloat16) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Weights k and k + 1 (k even) of a row, BITS wide or, for BITS 0, stored as they are.
template <int BITS, int GROUP, typename W, typename S>
__device__ inline void weight_pair(
    const W* weights, const S* scales, const S* biases, long row, int k, int size, float& low, float& high) {
  if constexpr (BITS == 0) {
    low = widen(weights[row * size + k]);
    high = widen(weights[row * size + k + 1]);
  } else {
    const unsigned word = weights[row * (size * BITS / 32) + k * BITS / 32] >> (k * BITS % 32);
    const unsigned mask = (1u << BITS) - 1u;
    const long group = row * (size / GROUP) + k / GROUP;
    const float scale = widen(scales[group]), bias = widen(biases[group]);
    low = __fadd_rn(__fmul_rn(scale, float(word & mask)), bias);
    high = __fadd_rn(__fmul_rn(scale, float((word >> BITS) & mask)), bias);
  }
}
"""

# Template: T (half type of x and out), BITS, GROUP, ROW_TILES. Inputs: x, weights, scales, biases, sizes = [M, K, N].
HALF_LINEAR = """
  constexpr int warps = 4, column_tiles = 4, tile_columns = 32, tile_rows = 16 * ROW_TILES;
  __shared__ float partial[warps][tile_rows][tile_columns + 1];
  const int rows = sizes[0], size = sizes[1], columns = sizes[2];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, line = lane / 4, pair = lane % 4 * 2;
  const int first_column = blockIdx.x * tile_columns, first_row = blockIdx.y * tile_rows;
  float sums[ROW_TILES][column_tiles][4];
  for (int r = 0; r < ROW_TILES; r++)
    for (int c = 0; c < column_tiles; c++)
      for (int i = 0; i < 4; i++) sums[r][c][i] = 0.0f;

  for (int block = warp; block < size / 32; block += warps) {
    for (int k0 = block * 32; k0 < block * 32 + 32; k0 += 16) {
      unsigned right[column_tiles][2];
      for (int c = 0; c < column_tiles; c++) {
        const long column = min(first_column + c * 8 + line, columns - 1);
        for (int half = 0; half < 2; half++) {
          float low, high;
          weight_pair<BITS, GROUP>(weights, scales, biases, column, k0 + half * 8 + pair, size, low, high);
          T rounded_low, rounded_high;
          round_to(low, rounded_low);
          round_to(high, rounded_high);
          right[c][half] = pack_pair(rounded_low, rounded_high);
        }
      }
      for (int r = 0; r < ROW_TILES; r++) {
        unsigned left[4];
        for (int i = 0; i < 4; i++) {
          const int row = first_row + r * 16 + line + i % 2 * 8;
          const long at = (long)row * size + k0 + pair + i / 2 * 8;
          left[i] = row < rows ? pack_pair(x[at], x[at + 1]) : 0u;
        }
        for (int c = 0; c < column_tiles; c++) multiply_tile(sums[r][c], left, right[c], T(0.0f));
      }
    }
  }

  for (int r = 0; r < ROW_TILES; r++)
    for (int c = 0; c < column_tiles; c++)
      for (int i = 0; i < 4; i++)
        partial[warp][r * 16 + line + i / 2 * 8][c * 8 + pair + i % 2] = sums[r][c][i];
  __syncthreads();
  for (int place = threadIdx.x; place < tile_rows * tile_columns; place += blockDim.x) {
    const int row = place / tile_columns, column = place % tile_columns;
    if (first_row + row >= rows || first_column + column >= columns) continue;
    float total = partial[0][row][column];
    for (int w = 1; w < warps; w++) total = __fadd_rn(total, partial[w][row][column]);
    round_to(total, out[(long)(first_row + row) * columns + first_column + column]);
  }
"""

# Template: BITS, GROUP, ROWS. Inputs: x f32, weights, scales, biases, sizes = [M, K, N]; out f32. K is a multiple of 8.
FLOAT_LINEAR = """
  const int rows = sizes[0], size = sizes[1], columns = sizes[2];
  const int lane = threadIdx.x % 32, column = blockIdx.x * 4 + threadIdx.x / 32, first_row = blockIdx.y * ROWS;
  if (column >= columns) return;
  float sums[ROWS];
  for (int r = 0; r < ROWS; r++) sums[r] = 0.0f;
  for (int k = lane * 8; k < size; k += 256) {
    float values[8];
    for (int i = 0; i < 8; i += 2)
      weight_pair<BITS, GROUP>(weights, scales, biases, (long)column, k + i, size, values[i], values[i + 1]);
    for (int r = 0; r < ROWS; r++) {
      if (first_row + r >= rows) continue;
      const float* row = x + (long)(first_row + r) * size + k;
      for (int i = 0; i < 8; i++) sums[r] = __fmaf_rn(row[i], values[i], sums[r]);
    }
  }
  for (int r = 0; r < ROWS; r++) {
    float total = sums[r];
    for (int distance = 16; distance > 0; distance /= 2)
      total = __fadd_rn(total, __shfl_xor_sync(0xffffffffu, total, distance));
    if (lane == 0 && first_row + r < rows) out[(long)(first_row + r) * columns + column] = total;
  }
"""

# Template: T, SIZE (head size, a multiple of 32), WINDOW (0: none), SINKS. Inputs: queries (R, H, D), keys and values
# (slots, kv_heads, D), tables, table_of_row, lengths, sinks (H) f32, scale (1) f32,
# sizes = [R, H, kv_heads, table width].
ATTENTION = """
  constexpr int parts = SIZE / 32;
  const int rows = sizes[0], heads = sizes[1], kv_heads = sizes[2], width = sizes[3];
  const int lane = threadIdx.x % 32, task = blockIdx.x * 4 + threadIdx.x / 32;
  __shared__ float query_memory[4][SIZE];
  float* query = query_memory[threadIdx.x / 32];
  if (task >= rows * heads) return;
  const int row = task / heads, head = task % heads, kv_head = head / (heads / kv_heads);
  const int length = lengths[row], first = WINDOW > 0 ? max(0, length - WINDOW) : 0;
  const int* table = tables + (long)table_of_row[row] * width;
  for (int p = 0; p < parts; p++) {
    const int d = lane + 32 * p;
    query[d] = __fmul_rn(widen(queries[((long)row * heads + head) * SIZE + d]), scale[0]);
  }
  __syncwarp();

  float largest = SINKS ? sinks[head] : NEGATIVE_INFINITY, total = SINKS ? 1.0f : 0.0f;
  float sums[parts];
  for (int p = 0; p < parts; p++) sums[p] = 0.0f;
  for (int tile = first; tile < length; tile += 32) {
    const int position = tile + lane;
    float score = NEGATIVE_INFINITY;
    if (position < length) {
      const T* key = keys + ((long)table[position] * kv_heads + kv_head) * SIZE;
      score = 0.0f;
      for (int d = 0; d < SIZE; d++) score = __fmaf_rn(query[d], widen(key[d]), score);
    }
    float tile_largest = score;
    for (int distance = 16; distance > 0; distance /= 2)
      tile_largest = fmaxf(tile_largest, __shfl_xor_sync(0xffffffffu, tile_largest, distance));
    const float new_largest = fmaxf(largest, tile_largest);
    const float shrink = largest == new_largest ? 1.0f : expf(largest - new_largest);
    const float weight = position < length ? expf(score - new_largest) : 0.0f;
    float tile_total = weight;
    for (int distance = 16; distance > 0; distance /= 2)
      tile_total = __fadd_rn(tile_total, __shfl_xor_sync(0xffffffffu, tile_total, distance));
    total = __fmaf_rn(total, shrink, tile_total);
    for (int p = 0; p < parts; p++) sums[p] = __fmul_rn(sums[p], shrink);
    for (int i = 0; i < min(32, length - tile); i++) {
      const float w = __shfl_sync(0xffffffffu, weight, i);
      const T* value = values + ((long)table[tile + i] * kv_heads + kv_head) * SIZE;
      for (int p = 0; p < parts; p++) sums[p] = __fmaf_rn(w, widen(value[lane + 32 * p]), sums[p]);
    }
    largest = new_largest;
  }
  for (int p = 0; p < parts; p++)
    round_to(__fdiv_rn(sums[p], total), out[((long)row * heads + head) * SIZE + lane + 32 * p]);
"""
