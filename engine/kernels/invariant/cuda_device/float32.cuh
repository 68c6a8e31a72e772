// Linears of float32 rows and attention for what the tensor-core kernels do not take (float32, odd head sizes), on the
// ordinary units. One warp an output: each lane takes its elements in rising order, then a fixed exchange.
#pragma once

namespace divtrace {

// Weight `index` of a column that starts `first` weights into the packed array, as a number.
template <int BITS, int GROUP, typename W, typename S>
__device__ inline float plain_weight(const W* weights, const S* scales, const S* biases, long first, int index) {
  if constexpr (BITS == 0) {
    return widen(weights[first + index]);
  } else {
    const long bit = (first + index) * BITS, word = bit / 32, group = (first + index) / GROUP;
    const int shift = bit % 32;
    unsigned value = weights[word] >> shift;
    if (shift + BITS > 32) value |= weights[word + 1] << (32 - shift);
    value &= (1u << BITS) - 1u;
    return __fadd_rn(__fmul_rn(widen(scales[group]), float(value)), widen(biases[group]));
  }
}

// A block: one output column a warp, ROWS rows. `size` is a multiple of 32.
template <int BITS, int GROUP, int ROWS_AT_ONCE, typename W, typename S>
__device__ inline void float_linear(
    const float* x, const W* weights, const S* scales, const S* biases, int rows, int size, int columns, float* out) {
  const int lane = threadIdx.x % 32, column = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  const int first_row = blockIdx.y * ROWS_AT_ONCE;
  if (column >= columns) return;
  float sums[ROWS_AT_ONCE] = {};
  for (int k = lane * 8; k < size; k += 256) {
    float values[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
      values[i] = plain_weight<BITS, GROUP>(weights, scales, biases, (long)column * size, k + i);
#pragma unroll
    for (int r = 0; r < ROWS_AT_ONCE; r++) {
      if (first_row + r >= rows) continue;
      const float* row = x + (long)(first_row + r) * size + k;
#pragma unroll
      for (int i = 0; i < 8; i++) sums[r] = __fmaf_rn(row[i], values[i], sums[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < ROWS_AT_ONCE; r++) {
    float total = sums[r];
    for (int distance = 16; distance > 0; distance /= 2)
      total = __fadd_rn(total, __shfl_xor_sync(0xffffffffu, total, distance));
    if (lane == 0 && first_row + r < rows) out[(long)(first_row + r) * columns + column] = total;
  }
}

// One warp a (row, query head), keys in tiles of 32 counted from the row's first key; any head size. `sizes` = rows,
// heads, kv_heads, table width.
template <typename T, int SIZE, int WINDOW, bool SINKS>
__device__ inline void plain_attention(
    const T* queries, const T* keys, const T* values, const int* tables, const int* table_of_row, const int* lengths,
    const float* sinks, const float* scale, const int* sizes, T* out) {
  constexpr int parts = (SIZE + 31) / 32;
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
    if (d < SIZE) query[d] = __fmul_rn(widen(queries[((long)row * heads + head) * SIZE + d]), scale[0]);
  }
  __syncwarp();

  float largest = SINKS ? sinks[head] : NEGATIVE_INFINITY, total = SINKS ? 1.0f : 0.0f;
  float sums[parts] = {};
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
      for (int p = 0; p < parts; p++)
        if (lane + 32 * p < SIZE) sums[p] = __fmaf_rn(w, widen(value[lane + 32 * p]), sums[p]);
    }
    largest = new_largest;
  }
  for (int p = 0; p < parts; p++)
    if (lane + 32 * p < SIZE) round_to(__fdiv_rn(sums[p], total), out[((long)row * heads + head) * SIZE + lane + 32 * p]);
}

}  // namespace divtrace
