// `block_linear`: the linear of linear.cuh for many rows. Rows and packed weights travel through buffers of shared memory
// in the background; a warp walks all slices of its columns in the order that linear.cuh fixes.
#pragma once

namespace divtrace {

constexpr int TOGETHER = 4;  // row tiles whose instructions are issued side by side

// Place of 16-byte chunk `part` of thread `quarter`'s run, of PARTS chunks a run, in a row of shared memory: no two of
// the eight threads that read together meet in a bank.
template <int PARTS>
__device__ inline int chunk_place(int row, int quarter, int part) {
  if constexpr (PARTS == 1) return row * 4 + quarter;
  return row * 4 * PARTS + ((part * 4 + quarter) ^ ((row & 1) << 2));
}

// How a block of THREADS copies LANES_OF rows of COPIES chunks of 16 bytes: thread by thread along a row, then rows.
template <int COPIES, int THREADS, int LANES_OF>
struct Copying {
  static constexpr int AT_ONCE = THREADS / COPIES;
  static constexpr int TURNS = (LANES_OF + AT_ONCE - 1) / AT_ONCE;
  static constexpr bool WHOLE = LANES_OF % AT_ONCE == 0;
  static_assert(THREADS % COPIES == 0 && AT_ONCE % 2 == 0);
};

// A step's weights of a block in shared memory, as they are packed. Runs of 4 and 8 bits and dense ones lie in chunks of
// 16 bytes; the others are copied word by word, for their columns start at multiples of four bytes only.
template <int BITS, int COLUMNS, int THREADS>
struct WeightTile {
  static constexpr int RUN_WORDS = Run<BITS>::WORDS;
  static constexpr bool IN_CHUNKS = RUN_WORDS % 4 == 0;
  static constexpr int PARTS = IN_CHUNKS ? RUN_WORDS / 4 : 1;
  static constexpr int COLUMN_WORDS = 4 * RUN_WORDS;
  using Chunks = Copying<IN_CHUNKS ? 4 * PARTS : 4, THREADS, COLUMNS>;

  const unsigned* sources[IN_CHUNKS ? Chunks::TURNS : 1];
  int place, quarter, last_column, row_words;

  __device__ inline WeightTile(const void* weights, int first_column, int columns, int size) {
    row_words = size / 32 * RUN_WORDS;
    last_column = columns - 1 - first_column;
    const unsigned* start = reinterpret_cast<const unsigned*>(weights) + (long)first_column * row_words;
    if constexpr (IN_CHUNKS) {
      const int copy = threadIdx.x % (4 * PARTS), column = threadIdx.x / (4 * PARTS);
      quarter = copy / PARTS;
      place = 4 * chunk_place<PARTS>(column, quarter, copy % PARTS);
#pragma unroll
      for (int turn = 0; turn < Chunks::TURNS; turn++)
        sources[turn] = start + (long)min(column + turn * Chunks::AT_ONCE, last_column) * row_words + 4 * copy;
    } else {
      sources[0] = start;
    }
  }
  // Starts the copies of `step` into `tile`.
  __device__ inline void fetch(unsigned* tile, int step, int size) const {
    if constexpr (IN_CHUNKS) {
      const bool there = step * STEP + 32 * quarter < size;
#pragma unroll
      for (int turn = 0; turn < Chunks::TURNS; turn++)
        if (Chunks::WHOLE || threadIdx.x / (4 * PARTS) + turn * Chunks::AT_ONCE < COLUMNS)
          copy_async<16>(tile + place + turn * Chunks::AT_ONCE * COLUMN_WORDS,
                         there ? sources[turn] + step * COLUMN_WORDS : sources[turn], there);
    } else {
      for (int copy = threadIdx.x; copy < COLUMNS * COLUMN_WORDS; copy += THREADS) {
        const int column = copy / COLUMN_WORDS, word = copy % COLUMN_WORDS;
        const bool there = step * STEP + 32 * (word / RUN_WORDS) < size;
        const unsigned* source = sources[0] + (long)min(column, last_column) * row_words;
        copy_async<4>(tile + copy, there ? source + step * COLUMN_WORDS + word : source, there);
      }
    }
  }
  __device__ static inline void read(const unsigned* tile, int column, int quarter, Run<BITS>& run) {
    if constexpr (IN_CHUNKS) {
#pragma unroll
      for (int part = 0; part < PARTS; part++) {
        const uint4 four = reinterpret_cast<const uint4*>(tile)[chunk_place<PARTS>(column, quarter, part)];
        run.words[4 * part] = four.x, run.words[4 * part + 1] = four.y;
        run.words[4 * part + 2] = four.z, run.words[4 * part + 3] = four.w;
      }
    } else {
#pragma unroll
      for (int i = 0; i < RUN_WORDS; i++) run.words[i] = tile[column * COLUMN_WORDS + quarter * RUN_WORDS + i];
    }
  }
};

// A step's rows of a block in shared memory.
template <typename T, int TILE_ROWS, int THREADS>
struct RowTile {
  using Chunks = Copying<ROW_CHUNKS, THREADS, TILE_ROWS>;
  const T* source;
  int place, own_k, rows_left, stride;

  __device__ inline RowTile(const Linear<T>& call, int first_row) {
    const int chunk = threadIdx.x % ROW_CHUNKS, row = threadIdx.x / ROW_CHUNKS;
    own_k = 8 * chunk;
    place = chunk_place<4>(row, chunk / 4, chunk % 4);
    source = call.x + (long)(first_row + row) * call.size + own_k;
    rows_left = call.rows - first_row - row;
    stride = Chunks::AT_ONCE * call.size;
  }
  __device__ inline void fetch(uint4* tile, const Linear<T>& call, int step) const {
    const bool whole = step * STEP + own_k < call.size;
#pragma unroll
    for (int turn = 0; turn < Chunks::TURNS; turn++) {
      if (!Chunks::WHOLE && threadIdx.x / ROW_CHUNKS + turn * Chunks::AT_ONCE >= TILE_ROWS) continue;
      const bool there = whole && turn * Chunks::AT_ONCE < rows_left;
      copy_async<16>(tile + place + turn * Chunks::AT_ONCE * ROW_CHUNKS,
                     there ? source + (long)turn * stride + step * STEP : call.x, there);
    }
  }
};

// Bytes of shared memory that `block_linear` needs.
template <int BITS, int TILES, int ROW_TILES, int WARPS, int STAGES>
constexpr int BLOCK_MEMORY = STAGES * (ROW_TILES * ROWS * STEP * 2 + WARPS * TILES * LINE * 4 * Run<BITS>::WORDS * 4);

// A block: WARPS * TILES * 16 columns by ROW_TILES * 8 rows; every warp has all rows of the block.
template <typename T, int BITS, int GROUP, int TILES, int ROW_TILES, int SLICE_STEPS, int WARPS, int STAGES>
__device__ inline void block_linear(const Linear<T>& call, uint4* memory) {
  constexpr int tile_rows = ROW_TILES * ROWS, tile_columns = WARPS * TILES * LINE, threads = 32 * WARPS;
  constexpr int row_chunks = tile_rows * ROW_CHUNKS, together = ROW_TILES < TOGETHER ? ROW_TILES : TOGETHER;
  using Tile = WeightTile<BITS, tile_columns, threads>;
  constexpr int weight_words = tile_columns * Tile::COLUMN_WORDS;
  uint4* const row_memory = memory;
  unsigned* const weight_memory = reinterpret_cast<unsigned*>(memory + STAGES * row_chunks);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, line = lane / 4, quarter = lane % 4;
  const int block_column = blockIdx.x * tile_columns, first_row = blockIdx.y * tile_rows;
  const int own_column = warp * TILES * LINE, steps = (call.size + STEP - 1) / STEP;
  const ColumnTiles<BITS, GROUP, TILES> places(block_column + own_column, call.columns, call.size);
  const Tile weight_tile(call.weights, block_column, call.columns, call.size);
  const RowTile<T, tile_rows, threads> row_tile(call, first_row);
  auto fetch = [&](int step, int stage) {
    if (step < steps) {
      row_tile.fetch(row_memory + stage * row_chunks, call, step);
      weight_tile.fetch(weight_memory + stage * weight_words, step, call.size);
    }
    commit_async();
  };

  float sums[TILES][ROW_TILES][4] = {}, totals[TILES][ROW_TILES][4] = {};
  Affine<T> affine[TILES], next_affine[TILES];
#pragma unroll
  for (int stage = 0; stage < STAGES - 1; stage++) fetch(stage, stage);
#pragma unroll
  for (int t = 0; t < TILES; t++) next_affine[t].load(call, places.tiles[t], 32 * quarter);
  int stage = 0, coming = STAGES - 1;
#pragma unroll 1
  for (int step = 0; step < steps; step++) {
    wait_async<STAGES - 2>();
    __syncthreads();
    fetch(step + STAGES - 1, coming);
    Run<BITS> run[TILES][2];
#pragma unroll
    for (int t = 0; t < TILES; t++) {
      affine[t] = next_affine[t];
      next_affine[t].load(call, places.tiles[t], (step + 1) * STEP + 32 * quarter);
#pragma unroll
      for (int side = 0; side < 2; side++)
        Tile::read(weight_memory + stage * weight_words, own_column + line + t * LINE + 8 * side, quarter, run[t][side]);
    }
    const uint4* own_rows = row_memory + stage * row_chunks;
#pragma unroll
    for (int unit = 0; unit < 4; unit++) {
      unsigned left[TILES][2][4];
#pragma unroll
      for (int t = 0; t < TILES; t++) unit_operands(run[t], affine[t], unit, left[t]);
#pragma unroll
      for (int first = 0; first < ROW_TILES; first += together) {
        uint4 right[together];
#pragma unroll
        for (int r = 0; r < together; r++)
          right[r] = own_rows[chunk_place<4>((first + r) * ROWS + line, quarter, unit)];
        multiply_unit<T>(sums, first, left, right);
      }
    }
    if ((step + 1) % SLICE_STEPS == 0 || step + 1 == steps) {
#pragma unroll
      for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
          for (int i = 0; i < 4; i++) {
            totals[t][r][i] = __fadd_rn(totals[t][r][i], sums[t][r][i]);
            sums[t][r][i] = 0.0f;
          }
    }
    stage = stage + 1 == STAGES ? 0 : stage + 1;
    coming = coming + 1 == STAGES ? 0 : coming + 1;
  }
#pragma unroll
  for (int t = 0; t < TILES; t++)
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int row = first_row + r * ROWS + 2 * quarter + i % 2;
        const int column = block_column + own_column + line + t * LINE + i / 2 * 8;
        if (row < call.rows && column < call.columns)
          round_to(totals[t][r][i], call.out[(long)row * call.columns + column]);
      }
}

}  // namespace divtrace
