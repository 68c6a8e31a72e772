// Attention of half-precision queries over paged K/V, read in place. A query head's output depends on its query, the
// keys it sees and their positions, on nothing else.
//
// Sixteen lines (a query and one of the heads that share a K/V head) make the left operand of the tensor-core
// instruction; each line is alone in arithmetic. The order of every sum: positions are cut into chunks of 64 counted
// from position 0; a chunk has one maximum, one sum of weights, one sum of values, whole or partly seen; chunks are
// merged from the first that the line sees to the last. `SPLIT` gives each chunk a warp of its own and leaves the merge
// to `merge_chunks`; else one warp walks all chunks of its lines. Both give the same bits.
#pragma once

namespace divtrace {

constexpr int CHUNK = 64;
constexpr int LINES = 16;
constexpr float LOG2_E = 1.4426950408889634f;

// Softmax so far, in powers of two: the maximum, the sum of weights; the values' sums lie beside it.
struct Softmax {
  float largest, total;
};

// How much a softmax shrinks when its maximum becomes `largest`.
__device__ inline float shrink(float own, float largest) { return own == largest ? 1.0f : exp2f(own - largest); }

struct Merge {
  float kept, added;
};
__device__ inline Merge merge_softmax(Softmax& so_far, Softmax chunk) {
  const float largest = fmaxf(so_far.largest, chunk.largest);
  const Merge merge{shrink(so_far.largest, largest), shrink(chunk.largest, largest)};
  so_far.total = __fadd_rn(__fmul_rn(so_far.total, merge.kept), __fmul_rn(chunk.total, merge.added));
  so_far.largest = largest;
  return merge;
}
__device__ inline float merge_value(float so_far, float chunk, Merge merge) {
  return __fadd_rn(__fmul_rn(so_far, merge.kept), __fmul_rn(chunk, merge.added));
}
__device__ inline Softmax empty_softmax(const float* sinks, int head, bool has_sinks) {
  if (has_sinks) return {__fmul_rn(sinks[head], LOG2_E), 1.0f};
  return {NEGATIVE_INFINITY, 0.0f};
}

// Which positions a line sees: [first, length). A line without a query sees none.
struct Seen {
  int first, length;
  __device__ inline bool sees(int position) const { return position >= first && position < length; }
  __device__ inline bool sees_chunk(int start) const { return length > start && first < start + CHUNK; }
};

template <typename T>
__device__ inline bool is_strange(unsigned pair) {  // NaN or infinite, in either half
  constexpr unsigned exponent = Patterns<T>::EXPONENT;
  return (pair & exponent) == exponent || (pair >> 16 & exponent) == exponent;
}

// Template: T, SIZE (a multiple of 64), WINDOW (0: none), SPLIT, HAS_SINKS. `tiles` (tiles, 4) int32: table, first row
// of the segment, first line of the tile, lines of the segment; `sizes` = rows, heads, kv_heads, table width, tiles,
// chunks. Outputs of SPLIT: partial (rows, heads, chunks, SIZE) and stats (rows, heads, chunks, 2), float32.
template <typename T, int SIZE, int WINDOW, bool SPLIT, bool HAS_SINKS>
struct AttentionTile {
  static constexpr int BLOCKS = SIZE / 64;
  const T* queries;
  const T* keys;
  const T* values;
  const int* table;
  const int* lengths;
  float scale;
  int heads, kv_heads, kv_head, first_row, first_line, segment_lines;

  int lane, line, quarter;
  Seen seen[2];
  int longest, shortest, earliest;

  __device__ inline int row_of(int tile_line) const { return first_row + (first_line + tile_line) / (heads / kv_heads); }
  __device__ inline int head_of(int tile_line) const {
    const int group = heads / kv_heads;
    return kv_head * group + (first_line + tile_line) % group;
  }
  __device__ inline bool exists(int tile_line) const { return first_line + tile_line < segment_lines; }
  __device__ inline Seen seen_by(int tile_line) const {
    if (!exists(tile_line)) return {0, 0};
    const int length = lengths[row_of(tile_line)];
    return {WINDOW > 0 ? max(0, length - WINDOW) : 0, length};
  }

  __device__ inline void prepare() {
    lane = threadIdx.x % 32, line = lane / 4, quarter = lane % 4;
    seen[0] = seen_by(line), seen[1] = seen_by(line + 8);
    const int last_line = min(LINES, segment_lines - first_line) - 1;
    longest = 0, shortest = 1 << 30, earliest = 1 << 30;
    for (int tile_line = 0; tile_line <= last_line; tile_line++) {
      const Seen one = seen_by(tile_line);
      longest = max(longest, one.length), shortest = min(shortest, one.length), earliest = min(earliest, one.first);
    }
  }

  __device__ inline const T* row_at(const T* pool, int position) const {
    return pool + ((long)table[min(position, longest - 1)] * kv_heads + kv_head) * SIZE;
  }

  // Brings a chunk's values nearer while the scores are worked out.
  __device__ inline void prefetch_values(int start) const {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const T* value = row_at(values, start + lane + 32 * half);
#pragma unroll
      for (int block = 0; block < BLOCKS; block++) prefetch(value + 64 * block);
    }
  }

  // Scores of a chunk, scaled to powers of two; what a line does not see is minus infinity.
  __device__ inline void scores(int start, float (&score)[8][4]) const {
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) score[n][i] = 0.0f;
    const T* key[8];
#pragma unroll
    for (int n = 0; n < 8; n++) key[n] = row_at(keys, start + 8 * n + line);
    const T* query[2];
#pragma unroll
    for (int side = 0; side < 2; side++) {
      const int own = exists(line + 8 * side) ? line + 8 * side : 0;
      query[side] = queries + ((long)row_of(own) * heads + head_of(own)) * SIZE;
    }
#pragma unroll
    for (int block = 0; block < SIZE / 32; block++) {
      const uint4 upper = *reinterpret_cast<const uint4*>(query[0] + 32 * block + 8 * quarter);
      const uint4 lower = *reinterpret_cast<const uint4*>(query[1] + 32 * block + 8 * quarter);
      const unsigned first[4] = {upper.x, lower.x, upper.y, lower.y}, second[4] = {upper.z, lower.z, upper.w, lower.w};
      uint4 right[8];
#pragma unroll
      for (int n = 0; n < 8; n++) right[n] = *reinterpret_cast<const uint4*>(key[n] + 32 * block + 8 * quarter);
#pragma unroll
      for (int n = 0; n < 8; n++) multiply_tile<T>(score[n], first, right[n].x, right[n].y);
#pragma unroll
      for (int n = 0; n < 8; n++) multiply_tile<T>(score[n], second, right[n].z, right[n].w);
    }
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const bool sees = seen[i / 2].sees(start + 8 * n + 2 * quarter + i % 2);
        score[n][i] = sees ? __fmul_rn(score[n][i], scale) : NEGATIVE_INFINITY;
      }
  }

  // Turns scores into weights, rounded to T in `weights`; returns each side's maximum and sum.
  __device__ inline void softmax(float (&score)[8][4], unsigned (&weights)[4][4], Softmax (&chunk)[2]) const {
#pragma unroll
    for (int side = 0; side < 2; side++) {
      float largest = NEGATIVE_INFINITY;
#pragma unroll
      for (int n = 0; n < 8; n++) largest = fmaxf(largest, fmaxf(score[n][2 * side], score[n][2 * side + 1]));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      float total = 0.0f;
#pragma unroll
      for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 2 * side; i < 2 * side + 2; i++) {
          score[n][i] = score[n][i] == NEGATIVE_INFINITY ? 0.0f : exp2f(__fsub_rn(score[n][i], largest));
          total = __fadd_rn(total, score[n][i]);
        }
      total = __fadd_rn(total, __shfl_xor_sync(0xffffffffu, total, 1));
      total = __fadd_rn(total, __shfl_xor_sync(0xffffffffu, total, 2));
      chunk[side] = {largest, total};
    }
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
      for (int side = 0; side < 2; side++) {
        T low, high;
        round_to(score[n][2 * side], low);
        round_to(score[n][2 * side + 1], high);
        weights[n / 2][n % 2 * 2 + side] = pack_pair(low, high);
      }
  }

  // Weighted sums of a chunk's values. `sums[b][j]` holds, of the 64 elements of block b, elements 16 q + j and
  // 16 q + 8 + j of this thread's two lines (q its quarter).
  __device__ inline void weigh(int start, const unsigned (&weights)[4][4], float (&sums)[BLOCKS][8][4]) const {
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
      for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) sums[b][j][i] = 0.0f;
    const bool partly_seen = start + CHUNK > shortest || (WINDOW > 0 && start < longest - WINDOW);
#pragma unroll
    for (int group = 0; group < 4; group++) {
      int position[4];
      const T* value[4];
#pragma unroll
      for (int p = 0; p < 4; p++) {
        position[p] = start + 16 * group + 2 * quarter + p % 2 + p / 2 * 8;
        value[p] = row_at(values, position[p]) + 8 * line;
      }
#pragma unroll
      for (int b = 0; b < BLOCKS; b++) {
        uint4 four[4];
#pragma unroll
        for (int p = 0; p < 4; p++) four[p] = *reinterpret_cast<const uint4*>(value[p] + 64 * b);
        if (partly_seen && any_strange(four))
          weigh_line_by_line(position, four, weights[group], sums[b]);
        else
          weigh_group(four, weights[group], sums[b]);
      }
    }
  }

  __device__ inline bool any_strange(const uint4 (&four)[4]) const {
    bool strange = false;
#pragma unroll
    for (int p = 0; p < 4; p++)
      strange |= is_strange<T>(four[p].x) | is_strange<T>(four[p].y) | is_strange<T>(four[p].z) | is_strange<T>(four[p].w);
    return __any_sync(0xffffffffu, strange);
  }

  __device__ inline void weigh_group(const uint4 (&four)[4], const unsigned (&weights)[4], float (&sums)[8][4]) const {
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const unsigned selector = j % 2 ? 0x7632u : 0x5410u;
      unsigned right[2];
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const uint4 a = four[2 * h], b = four[2 * h + 1];
        const unsigned low = j / 2 == 0 ? a.x : j / 2 == 1 ? a.y : j / 2 == 2 ? a.z : a.w;
        const unsigned high = j / 2 == 0 ? b.x : j / 2 == 1 ? b.y : j / 2 == 2 ? b.z : b.w;
        right[h] = __byte_perm(low, high, selector);
      }
      multiply_tile<T>(sums[j], weights, right[0], right[1]);
    }
  }

  // A value that one line sees and is not finite must not reach a line that does not see it: zero times it is not zero.
  __device__ inline void weigh_line_by_line(
      const int (&position)[4], const uint4 (&four)[4], const unsigned (&weights)[4], float (&sums)[8][4]) const {
#pragma unroll 1
    for (int tile_line = 0; tile_line < LINES; tile_line++) {
      const Seen one = seen_by(tile_line);
      uint4 own[4];
#pragma unroll
      for (int p = 0; p < 4; p++) own[p] = one.sees(position[p]) ? four[p] : make_uint4(0u, 0u, 0u, 0u);
      float trial[8][4];
#pragma unroll
      for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) trial[j][i] = sums[j][i];
      weigh_group(own, weights, trial);
      if (line == tile_line % 8) {
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
          for (int i = 0; i < 2; i++) {
            if (tile_line < 8) sums[j][i] = trial[j][i];
            else sums[j][i + 2] = trial[j][i + 2];
          }
      }
    }
  }
};

template <typename T, int SIZE, int WINDOW, bool SPLIT, bool HAS_SINKS>
__device__ inline AttentionTile<T, SIZE, WINDOW, SPLIT, HAS_SINKS> attention_tile(
    const T* queries, const T* keys, const T* values, const int* tables, const int* tiles, const int* lengths,
    const float* scale, const int* sizes, int tile, int kv_head) {
  AttentionTile<T, SIZE, WINDOW, SPLIT, HAS_SINKS> self;
  const int* entry = tiles + 4 * tile;
  self.queries = queries, self.keys = keys, self.values = values, self.lengths = lengths;
  self.table = tables + (long)entry[0] * sizes[3];
  self.scale = __fmul_rn(scale[0], LOG2_E);
  self.heads = sizes[1], self.kv_heads = sizes[2], self.kv_head = kv_head;
  self.first_row = entry[1], self.first_line = entry[2], self.segment_lines = entry[3];
  self.prepare();
  return self;
}

// One warp a (tile, K/V head): grid (tiles / warps of a block, kv_heads).
template <typename T, int SIZE, int WINDOW, bool HAS_SINKS>
__device__ inline void walk_attention(
    const T* queries, const T* keys, const T* values, const int* tables, const int* tiles, const int* lengths,
    const float* sinks, const float* scale, const int* sizes, T* out) {
  const int tile = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (tile >= sizes[4]) return;
  const auto self = attention_tile<T, SIZE, WINDOW, false, HAS_SINKS>(
      queries, keys, values, tables, tiles, lengths, scale, sizes, tile, blockIdx.y);
  constexpr int blocks = SIZE / 64;
  Softmax so_far[2];
#pragma unroll
  for (int side = 0; side < 2; side++) {
    const int own = self.exists(self.line + 8 * side) ? self.line + 8 * side : 0;
    so_far[side] = empty_softmax(sinks, self.head_of(own), HAS_SINKS);
  }
  float totals[blocks][8][4] = {};
#pragma unroll 1
  for (int start = self.earliest / CHUNK * CHUNK; start < self.longest; start += CHUNK) {
    float score[8][4], sums[blocks][8][4];
    unsigned weights[4][4];
    Softmax chunk[2];
    self.scores(start, score);
    self.softmax(score, weights, chunk);
    self.weigh(start, weights, sums);
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
  const auto self = attention_tile<T, SIZE, WINDOW, true, false>(
      queries, keys, values, tables, tiles, lengths, scale, sizes, blockIdx.y, blockIdx.z);
  constexpr int blocks = SIZE / 64;
  const int chunks = sizes[5], number = blockIdx.x, start = number * CHUNK;
  if (start >= self.longest || start + CHUNK <= self.earliest) return;
  float score[8][4], sums[blocks][8][4];
  unsigned weights[4][4];
  Softmax chunk[2];
  self.prefetch_values(start);
  self.scores(start, score);
  self.softmax(score, weights, chunk);
  self.weigh(start, weights, sums);
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
