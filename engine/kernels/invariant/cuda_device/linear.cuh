// Linears of half-precision rows: out (rows, columns) = x (rows, size) by weights (columns, size), float32 sums.
//
// The one order of every sum, whatever the number of rows: `size` is cut into slices of SLICE_STEPS * 128 values. A
// slice is summed from zero by one chain of the same tensor-core instruction, in rising order of its steps, units and
// halves; the slices' sums are added to zero from the first to the last. Which values meet in one instruction is fixed too:
// thread t of four holds values 32 t to 32 t + 31 of a step of 128. Weights are the instruction's left operand (an
// output column is a line of it) and rows the right one, so a row is one of the eight columns of the instruction and
// nothing of its neighbours enters it.
//
// `stream_linear` spreads the slices over the warps of a block: few rows, weights read once at memory's speed.
// `block_linear` lets a warp walk all slices for many rows, x shared by the block. Both give the same bits.
#pragma once

namespace divtrace {

constexpr int STEP = 128;      // values of a step: 32 of each of four threads
constexpr int LINE = 16;       // output columns of one instruction
constexpr int ROWS = 8;        // rows of one instruction
constexpr int ROW_CHUNKS = 16; // copies of 16 bytes of one row and step

// A linear call: x (rows, size), weights as MLX packs them or dense (columns, size), out (rows, columns).
template <typename T>
struct Linear {
  const T* x;
  const void* weights;
  const T* scales;
  const T* biases;
  int rows, size, columns;
  T* out;
};

// Where the two columns (line, line + 8) of a thread's instruction lie: words and groups from the arrays' starts.
template <int BITS, int GROUP>
struct ColumnPlaces {
  long words[2], groups[2];

  __device__ inline void set(int first_column, int columns, int size) {
    const int line = threadIdx.x % 32 / 4;
#pragma unroll
    for (int side = 0; side < 2; side++) {
      const long column = min(first_column + line + 8 * side, columns - 1);
      words[side] = column * (size / 32 * Run<BITS>::WORDS);
      groups[side] = column * (size / GROUP);
    }
  }
};

template <int BITS, int GROUP, int TILES>
struct ColumnTiles {
  ColumnPlaces<BITS, GROUP> tiles[TILES];

  __device__ inline ColumnTiles(int first_column, int columns, int size) {
#pragma unroll
    for (int t = 0; t < TILES; t++) tiles[t].set(first_column + t * LINE, columns, size);
  }
};

// Scale and bias of a thread's run in its two columns.
template <typename T>
struct Affine {
  T scale[2], bias[2];

  template <int BITS, int GROUP>
  __device__ inline void load(const Linear<T>& call, const ColumnPlaces<BITS, GROUP>& places, int k) {
#pragma unroll
    for (int side = 0; side < 2; side++) {
      if (BITS > 0 && k < call.size) {
        scale[side] = call.scales[places.groups[side] + k / GROUP];
        bias[side] = call.biases[places.groups[side] + k / GROUP];
      } else {
        round_to(0.0f, scale[side]);
        round_to(0.0f, bias[side]);
      }
    }
  }
};

// The left operands of unit `unit` of a step: two instructions of sixteen values each.
template <typename T, int BITS>
__device__ inline void unit_operands(const Run<BITS> (&run)[2], const Affine<T>& affine, int unit, unsigned (&left)[2][4]) {
#pragma unroll
  for (int side = 0; side < 2; side++) {
    unsigned pairs[4];
    weight_pairs<BITS, T>(run[side], unit, twice(affine.scale[side]), twice(affine.bias[side]), pairs);
    left[0][side] = pairs[0], left[0][side + 2] = pairs[1];
    left[1][side] = pairs[2], left[1][side + 2] = pairs[3];
  }
}

// sums += a unit's weights by its rows; instructions that do not wait for each other are issued side by side.
template <typename T, int TILES, int TOGETHER, int ROW_TILES>
__device__ inline void multiply_unit(
    float (&sums)[TILES][ROW_TILES][4], int first, const unsigned (&left)[TILES][2][4], const uint4 (&right)[TOGETHER]) {
#pragma unroll
  for (int r = 0; r < TOGETHER; r++)
#pragma unroll
    for (int t = 0; t < TILES; t++) multiply_tile<T>(sums[t][first + r], left[t][0], right[r].x, right[r].y);
#pragma unroll
  for (int r = 0; r < TOGETHER; r++)
#pragma unroll
    for (int t = 0; t < TILES; t++) multiply_tile<T>(sums[t][first + r], left[t][1], right[r].z, right[r].w);
}

// Sums of one slice for a warp's columns and up to ROW_TILES * 8 rows.
template <typename T, int BITS, int GROUP, int TILES, int ROW_TILES, int SLICE_STEPS>
__device__ inline void slice_sums(
    const Linear<T>& call, const ColumnPlaces<BITS, GROUP> (&places)[TILES], const T* const (&own_rows)[ROW_TILES],
    int first_k, float (&sums)[TILES][ROW_TILES][4]) {
  const unsigned* words = reinterpret_cast<const unsigned*>(call.weights);
  Run<BITS> run[SLICE_STEPS][TILES][2];
  Affine<T> affine[SLICE_STEPS][TILES];
#pragma unroll
  for (int step = 0; step < SLICE_STEPS; step++)
#pragma unroll
    for (int t = 0; t < TILES; t++) {
      const int k = first_k + step * STEP;
#pragma unroll
      for (int side = 0; side < 2; side++) {
        if (k < call.size) run[step][t][side].load(words + places[t].words[side] + k / 32 * Run<BITS>::WORDS);
        else run[step][t][side].clear();
      }
      affine[step][t].load(call, places[t], k);
    }
  if constexpr (ROW_TILES == 1) __syncwarp();  // keeps the compiler from putting off loads: few rows wait for memory
#pragma unroll
  for (int step = 0; step < SLICE_STEPS; step++) {
    const int k = first_k + step * STEP;
#pragma unroll
    for (int unit = 0; unit < 4; unit++) {
      uint4 right[ROW_TILES];
#pragma unroll
      for (int r = 0; r < ROW_TILES; r++) {
        right[r] = make_uint4(0u, 0u, 0u, 0u);
        if (own_rows[r] && k < call.size)
          right[r] = *reinterpret_cast<const uint4*>(own_rows[r] + k + 8 * unit);
      }
      unsigned left[TILES][2][4];
#pragma unroll
      for (int t = 0; t < TILES; t++) unit_operands(run[step][t], affine[step][t], unit, left[t]);
      multiply_unit<T>(sums, 0, left, right);
    }
  }
}

// A block: TILES * 16 columns by ROW_TILES * 8 rows; each of WARPS warps takes every WARPS-th slice.
template <typename T, int BITS, int GROUP, int TILES, int ROW_TILES, int SLICE_STEPS, int WARPS>
__device__ inline void stream_linear(const Linear<T>& call) {
  constexpr int tile_columns = TILES * LINE, tile_rows = ROW_TILES * ROWS, places = tile_rows * tile_columns;
  constexpr int own_places = (places + 32 * WARPS - 1) / (32 * WARPS), slice = SLICE_STEPS * STEP;
  __shared__ float partial[WARPS][tile_rows][tile_columns + 4];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, line = lane / 4, quarter = lane % 4;
  const int first_column = blockIdx.x * tile_columns, first_row = blockIdx.y * tile_rows;
  const int slices = (call.size + slice - 1) / slice;
  const T* own_rows[ROW_TILES];
#pragma unroll
  for (int r = 0; r < ROW_TILES; r++) {
    const int row = first_row + r * ROWS + line;
    own_rows[r] = row < call.rows ? call.x + (long)row * call.size : nullptr;
  }
  const auto columns_of = ColumnTiles<BITS, GROUP, TILES>(first_column, call.columns, call.size);
  float totals[own_places] = {};

  for (int base = 0; base < slices; base += WARPS) {
    if (base + warp < slices) {
      float sums[TILES][ROW_TILES][4] = {};
      slice_sums<T, BITS, GROUP, TILES, ROW_TILES, SLICE_STEPS>(
          call, columns_of.tiles, own_rows, (base + warp) * slice + 32 * quarter, sums);
#pragma unroll
      for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
          for (int i = 0; i < 4; i++)
            partial[warp][r * ROWS + 2 * quarter + i % 2][t * LINE + line + i / 2 * 8] = sums[t][r][i];
    }
    __syncthreads();
    const int present = min(WARPS, slices - base);
#pragma unroll
    for (int own = 0; own < own_places; own++) {
      const int place = threadIdx.x + own * 32 * WARPS;
      if (place >= places) break;
      const float* sum = &partial[0][place / tile_columns][place % tile_columns];
#pragma unroll
      for (int w = 0; w < WARPS; w++)
        if (w < present) totals[own] = __fadd_rn(totals[own], sum[w * tile_rows * (tile_columns + 4)]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int own = 0; own < own_places; own++) {
    const int place = threadIdx.x + own * 32 * WARPS;
    const int row = first_row + place / tile_columns, column = first_column + place % tile_columns;
    if (place < places && row < call.rows && column < call.columns)
      round_to(totals[own], call.out[(long)row * call.columns + column]);
  }
}

}  // namespace divtrace
