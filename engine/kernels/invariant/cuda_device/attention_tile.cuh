// Attention of half-precision queries over paged K/V, read in place. A query head's output depends on its query, the
// keys it sees and their positions, on nothing else.
//
// Sixteen lines (a query and one of the heads that share a K/V head) make the left operand of the tensor-core
// instruction; each line is alone in arithmetic. The order of every sum: positions are cut into chunks of 64 counted
// from position 0; a chunk has one maximum, one sum of weights, one sum of values, whole or partly seen; chunks are
// merged from the first that the line sees to the last. `chunk_attention` gives each chunk a warp of its own and leaves
// the merge to `merge_chunks`; in `walk_attention` a warp walks all chunks of its lines. Both give the same bits.
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

// A K or V row in the pool.
template <typename T>
struct PoolRow {
  const T* start;
  __device__ inline uint4 load(int part) const { return *reinterpret_cast<const uint4*>(start + 8 * part); }
};

// A K or V row of a chunk in shared memory; `turn` keeps the eight threads that read together out of each other's banks.
struct SharedRow {
  const uint4* start;
  int turn;
  __device__ inline uint4 load(int part) const { return start[part ^ turn]; }
};
__device__ inline int key_turn(int position) { return (position & 1) << 2; }
__device__ inline int value_turn(int position) { return (position >> 1 & 3) << 1; }

template <typename T>
__device__ inline bool is_strange(unsigned pair) {  // NaN or infinite, in either half
  constexpr unsigned exponent = Patterns<T>::EXPONENT;
  return (pair & exponent) == exponent || (pair >> 16 & exponent) == exponent;
}

// Sixteen lines and what one warp does for them. SIZE is the head size, a multiple of 64; WINDOW 0 is none. `tiles`
// (tiles, 4) int32: table, first row of the segment, first line of the tile, lines of the segment (a tile may lie behind
// them and is empty then); `sizes` = rows, heads, kv_heads, table width, tiles, chunks.
template <typename T, int SIZE, int WINDOW>
struct AttentionTile {
  static constexpr int BLOCKS = SIZE / 64, PARTS = SIZE / 8;
  const T* queries;
  const T* keys;
  const T* values;
  const int* table;
  const int* lengths;
  float scale;
  int heads, kv_heads, kv_head, first_row, first_line, segment_lines;

  int lane, line, quarter;
  Seen seen[2];
  int longest, shortest, earliest, latest, last_position;
  const T* query[2];

  __device__ inline int row_of(int tile_line) const { return first_row + (first_line + tile_line) / (heads / kv_heads); }
  __device__ inline int head_of(int tile_line) const {
    const int group = heads / kv_heads;
    return kv_head * group + (first_line + tile_line) % group;
  }
  __device__ inline bool exists(int tile_line) const {
    return tile_line < LINES && first_line + tile_line < segment_lines;
  }
  __device__ inline Seen seen_by(int tile_line) const {
    if (!exists(tile_line)) return {0, 0};
    const int length = lengths[row_of(tile_line)];
    return {WINDOW > 0 ? max(0, length - WINDOW) : 0, length};
  }

  __device__ inline void prepare() {
    lane = threadIdx.x % 32, line = lane / 4, quarter = lane % 4;
    seen[0] = seen_by(line), seen[1] = seen_by(line + 8);
    const bool own_exists = lane < LINES && exists(lane);
    const Seen own = seen_by(own_exists ? lane : LINES);
    longest = __reduce_max_sync(0xffffffffu, own.length);
    shortest = __reduce_min_sync(0xffffffffu, own_exists ? own.length : 1 << 30);
    earliest = __reduce_min_sync(0xffffffffu, own_exists ? own.first : 1 << 30);
    latest = __reduce_max_sync(0xffffffffu, own.first);
    last_position = max(longest - 1, 0);
#pragma unroll
    for (int side = 0; side < 2; side++) {
      const int present = exists(line + 8 * side) ? line + 8 * side : 0;
      query[side] = queries + ((long)row_of(present) * heads + head_of(present)) * SIZE;
    }
  }

  // True when every line sees the whole chunk at `start`.
  __device__ inline bool is_whole(int start) const { return start >= latest && start + CHUNK <= shortest; }

  __device__ inline const T* row_at(const T* pool, int position) const {
    return pool + ((long)table[min(position, last_position)] * kv_heads + kv_head) * SIZE;
  }
  // The rows of a chunk where they lie, for a warp that works alone.
  struct InPool {
    const AttentionTile& tile;
    int start;
    __device__ inline PoolRow<T> key(int place) const { return {tile.row_at(tile.keys, start + place)}; }
    __device__ inline PoolRow<T> value(int place) const { return {tile.row_at(tile.values, start + place)}; }
  };
  // The rows of a chunk as `fetch_chunk` put them.
  struct InShared {
    const uint4* memory;
    __device__ inline SharedRow key(int place) const { return {memory + place * PARTS, key_turn(place)}; }
    __device__ inline SharedRow value(int place) const {
      return {memory + (CHUNK + place) * PARTS, value_turn(place)};
    }
  };
  // Starts copying keys and values of the chunk at `start` for a block of THREADS.
  template <int THREADS>
  __device__ inline void fetch_chunk(int start, uint4* memory) const {
    const int part = threadIdx.x % PARTS;
#pragma unroll
    for (int place = threadIdx.x / PARTS; place < CHUNK; place += THREADS / PARTS) {
      const long row = ((long)table[min(start + place, last_position)] * kv_heads + kv_head) * SIZE + 8 * part;
      copy_async<16>(memory + place * PARTS + (part ^ key_turn(place)), keys + row, true);
      copy_async<16>(memory + (CHUNK + place) * PARTS + (part ^ value_turn(place)), values + row, true);
    }
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
  template <typename Rows>
  __device__ inline void scores(const Rows& rows, int start, float (&score)[8][4]) const {
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) score[n][i] = 0.0f;
    decltype(rows.key(0)) key[8];
#pragma unroll
    for (int n = 0; n < 8; n++) key[n] = rows.key(8 * n + line);
#pragma unroll
    for (int block = 0; block < SIZE / 32; block++) {
      const uint4 upper = *reinterpret_cast<const uint4*>(query[0] + 32 * block + 8 * quarter);
      const uint4 lower = *reinterpret_cast<const uint4*>(query[1] + 32 * block + 8 * quarter);
      const unsigned first[4] = {upper.x, lower.x, upper.y, lower.y}, second[4] = {upper.z, lower.z, upper.w, lower.w};
      uint4 right[8];
#pragma unroll
      for (int n = 0; n < 8; n++) right[n] = key[n].load(4 * block + quarter);
#pragma unroll
      for (int n = 0; n < 8; n++) multiply_tile<T>(score[n], first, right[n].x, right[n].y);
#pragma unroll
      for (int n = 0; n < 8; n++) multiply_tile<T>(score[n], second, right[n].z, right[n].w);
    }
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) score[n][i] = __fmul_rn(score[n][i], scale);
    if (is_whole(start)) return;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        if (!seen[i / 2].sees(start + 8 * n + 2 * quarter + i % 2)) score[n][i] = NEGATIVE_INFINITY;
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
  template <typename Rows>
  __device__ inline void weigh(
      const Rows& rows, int start, const unsigned (&weights)[4][4], float (&sums)[BLOCKS][8][4]) const {
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
      for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) sums[b][j][i] = 0.0f;
    const bool partly_seen = !is_whole(start);
#pragma unroll
    for (int group = 0; group < 4; group++) {
      int position[4];
      decltype(rows.value(0)) value[4];
#pragma unroll
      for (int p = 0; p < 4; p++) {
        const int place = 16 * group + 2 * quarter + p % 2 + p / 2 * 8;
        position[p] = start + place;
        value[p] = rows.value(place);
      }
#pragma unroll
      for (int b = 0; b < BLOCKS; b++) {
        uint4 four[4];
#pragma unroll
        for (int p = 0; p < 4; p++) four[p] = value[p].load(8 * b + line);
        if (partly_seen && any_strange(four))
          weigh_line_by_line(position, four, weights[group], sums[b]);
        else
          weigh_group(four, weights[group], sums[b]);
      }
    }
  }

  // What one chunk adds to each line: maximum and sum of weights in `chunk`, weighted values in `sums`.
  template <typename Rows>
  __device__ inline void sum_chunk(
      const Rows& rows, int start, Softmax (&chunk)[2], float (&sums)[BLOCKS][8][4]) const {
    float score[8][4];
    unsigned weights[4][4];
    scores(rows, start, score);
    softmax(score, weights, chunk);
    weigh(rows, start, weights, sums);
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

template <typename T, int SIZE, int WINDOW>
__device__ inline AttentionTile<T, SIZE, WINDOW> attention_tile(
    const T* queries, const T* keys, const T* values, const int* tables, const int* tiles, const int* lengths,
    const float* scale, const int* sizes, int tile, int kv_head) {
  AttentionTile<T, SIZE, WINDOW> self;
  const int* entry = tiles + 4 * tile;
  self.queries = queries, self.keys = keys, self.values = values, self.lengths = lengths;
  self.table = tables + (long)entry[0] * sizes[3];
  self.scale = __fmul_rn(scale[0], LOG2_E);
  self.heads = sizes[1], self.kv_heads = sizes[2], self.kv_head = kv_head;
  self.first_row = entry[1], self.first_line = entry[2], self.segment_lines = entry[3];
  self.prepare();
  return self;
}

}  // namespace divtrace
