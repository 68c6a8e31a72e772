// The launches of attention_tile.cuh: `chunk_attention` and `merge_chunks` for few rows, `walk_attention` for many.
#pragma once

namespace divtrace {

// Bytes of shared memory that `walk_attention` needs: keys and values of two chunks.
template <int SIZE>
constexpr int WALK_MEMORY = 2 * 2 * CHUNK * SIZE * 2;

// A block of WARPS warps walks the chunks of WARPS tiles of one segment: grid (tiles / WARPS, kv_heads).
template <typename T, int SIZE, int WINDOW, bool HAS_SINKS, int WARPS>
__device__ inline void walk_attention(
    const T* queries, const T* keys, const T* values, const int* tables, const int* tiles, const int* lengths,
    const float* sinks, const float* scale, const int* sizes, T* out, uint4* memory) {
  using Tile = AttentionTile<T, SIZE, WINDOW>;
  constexpr int blocks = SIZE / 64, chunk_parts = 2 * CHUNK * Tile::PARTS;
  __shared__ int bounds[WARPS][2];
  Tile self = attention_tile<T, SIZE, WINDOW>(
      queries, keys, values, tables, tiles, lengths, scale, sizes, blockIdx.x * WARPS + threadIdx.x / 32, blockIdx.y);
  bounds[threadIdx.x / 32][0] = self.earliest, bounds[threadIdx.x / 32][1] = self.longest;
  __syncthreads();
  int block_earliest = bounds[0][0], block_longest = bounds[0][1];
#pragma unroll
  for (int warp = 1; warp < WARPS; warp++)
    block_earliest = min(block_earliest, bounds[warp][0]), block_longest = max(block_longest, bounds[warp][1]);
  self.last_position = max(block_longest - 1, 0);

  Softmax so_far[2];
#pragma unroll
  for (int side = 0; side < 2; side++) {
    const int own = self.exists(self.line + 8 * side) ? self.line + 8 * side : 0;
    so_far[side] = empty_softmax(sinks, self.head_of(own), HAS_SINKS);
  }
  float totals[blocks][8][4] = {};
  const int begin = block_earliest / CHUNK * CHUNK;
  if (begin < block_longest) self.template fetch_chunk<32 * WARPS>(begin, memory);
  commit_async();
#pragma unroll 1
  for (int start = begin; start < block_longest; start += CHUNK) {
    const int buffer = (start - begin) / CHUNK % 2;
    if (start + CHUNK < block_longest)
      self.template fetch_chunk<32 * WARPS>(start + CHUNK, memory + (1 - buffer) * chunk_parts);
    commit_async();
    wait_async<1>();
    __syncthreads();
    if (start < self.longest && start + CHUNK > self.earliest) {
      const typename Tile::InShared rows{memory + buffer * chunk_parts};
      float sums[blocks][8][4];
      Softmax chunk[2];
      self.sum_chunk(rows, start, chunk, sums);
#pragma unroll
      for (int side = 0; side < 2; side++) {
        if (!self.seen[side].sees_chunk(start)) continue;
        const Merge merge = merge_softmax(so_far[side], chunk[side]);
#pragma unroll
        for (int b = 0; b < blocks; b++)
#pragma unroll
          for (int j = 0; j < 8; j++)
#pragma unroll
            for (int i = 2 * side; i < 2 * side + 2; i++)
              totals[b][j][i] = merge_value(totals[b][j][i], sums[b][j][i], merge);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int side = 0; side < 2; side++) {
    if (!self.exists(self.line + 8 * side)) continue;
    const int row = self.row_of(self.line + 8 * side), head = self.head_of(self.line + 8 * side);
    T* place = out + ((long)row * self.heads + head) * SIZE + 16 * self.quarter;
#pragma unroll
    for (int b = 0; b < blocks; b++)
#pragma unroll
      for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 2; i++)
          round_to(__fdiv_rn(totals[b][j][2 * side + i], so_far[side].total), place[64 * b + 8 * i + j]);
  }
}

// One warp a (chunk, tile, K/V head): grid (chunks, tiles, kv_heads), blocks of one warp.
template <typename T, int SIZE, int WINDOW>
__device__ inline void chunk_attention(
    const T* queries, const T* keys, const T* values, const int* tables, const int* tiles, const int* lengths,
    const float* scale, const int* sizes, float* partial, float* stats) {
  const auto self = attention_tile<T, SIZE, WINDOW>(
      queries, keys, values, tables, tiles, lengths, scale, sizes, blockIdx.y, blockIdx.z);
  constexpr int blocks = SIZE / 64;
  const int chunks = sizes[5], number = blockIdx.x, start = number * CHUNK;
  if (start >= self.longest || start + CHUNK <= self.earliest) return;
  float sums[blocks][8][4];
  Softmax chunk[2];
  const typename AttentionTile<T, SIZE, WINDOW>::InPool in_pool{self, start};
  self.prefetch_values(start);
  self.sum_chunk(in_pool, start, chunk, sums);
#pragma unroll
  for (int side = 0; side < 2; side++) {
    if (!self.exists(self.line + 8 * side)) continue;
    const long place =
        ((long)self.row_of(self.line + 8 * side) * self.heads + self.head_of(self.line + 8 * side)) * chunks + number;
    if (self.quarter == 0) stats[2 * place] = chunk[side].largest, stats[2 * place + 1] = chunk[side].total;
    float4* into = reinterpret_cast<float4*>(partial + place * SIZE + 16 * self.quarter);
#pragma unroll
    for (int b = 0; b < blocks; b++)
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 8; j += 4)
          into[16 * b + 2 * i + j / 4] = make_float4(
              sums[b][j][2 * side + i], sums[b][j + 1][2 * side + i], sums[b][j + 2][2 * side + i],
              sums[b][j + 3][2 * side + i]);
  }
}

// Merges what `chunk_attention` left: one warp a (row, head); grid (rows * heads / warps of a block).
template <typename T, int SIZE, int WINDOW, bool HAS_SINKS>
__device__ inline void merge_chunks(
    const float* partial, const float* stats, const int* lengths, const float* sinks, const int* sizes, T* out) {
  const int task = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  const int rows = sizes[0], heads = sizes[1], chunks = sizes[5];
  if (task >= rows * heads) return;
  constexpr int parts = SIZE / 32;
  const int length = lengths[task / heads], first = WINDOW > 0 ? max(0, length - WINDOW) : 0;
  Softmax so_far = empty_softmax(sinks, task % heads, HAS_SINKS);
  float totals[parts] = {};
#pragma unroll 4
  for (int chunk = first / CHUNK; chunk * CHUNK < length; chunk++) {
    const long place = (long)task * chunks + chunk;
    const Merge merge = merge_softmax(so_far, Softmax{stats[2 * place], stats[2 * place + 1]});
#pragma unroll
    for (int p = 0; p < parts; p++)
      totals[p] = merge_value(totals[p], partial[place * SIZE + lane + 32 * p], merge);
  }
#pragma unroll
  for (int p = 0; p < parts; p++)
    round_to(__fdiv_rn(totals[p], so_far.total), out[(long)task * SIZE + lane + 32 * p]);
}

}  // namespace divtrace
