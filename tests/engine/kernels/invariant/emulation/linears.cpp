// Linears: `stream_linear` and `block_linear` against a plain sum in double, against each other and for rows alone. The
// second half of each sum nearly takes back the first, so that another order of additions shows in half precision.
#include "emulator.hpp"

#include "primitives.cuh"
#include "linear.cuh"
#include "block_linear.cuh"

#include <cstdio>
#include <random>

using namespace divtrace;

template <typename T, int BITS, int GROUP>
struct Case {
  static constexpr int WORDS = Run<BITS>::WORDS;
  int rows, size, columns;
  std::vector<T> x, scales, biases;
  std::vector<unsigned> packed;
  std::vector<double> dense;
  std::vector<unsigned> integers;

  Case(int rows, int size, int columns, unsigned seed) : rows(rows), size(size), columns(columns) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const int half = size / 2;
    x.resize(rows * size);
    for (int i = 0; i < rows * size; i++) {
      const bool second = i % size >= half;
      round_to(second ? widen(x[i - half]) * 1.002f : normal(random), x[i]);
    }
    packed.assign(long(columns) * size / 32 * WORDS, 0u);
    dense.resize(long(columns) * size);
    scales.resize(columns * size / GROUP), biases.resize(scales.size());
    const int groups = size / GROUP;
    for (int i = 0; i < int(scales.size()); i++) {
      const bool second = i % groups >= groups / 2;
      round_to(second ? -widen(scales[i - groups / 2]) : 0.01f * normal(random), scales[i]);
      round_to(second ? -widen(biases[i - groups / 2]) : 0.1f * normal(random), biases[i]);
    }
    for (long i = 0; i < long(dense.size()); i++) {
      T weight;
      const bool second = i % size >= half;
      if constexpr (BITS == 0) {
        round_to(second ? float(-dense[i - half]) : normal(random), weight);
        std::memcpy(reinterpret_cast<uint16_t*>(packed.data()) + i, &weight, 2);
      } else {
        const unsigned q = second ? integers[i - half] : random() & ((1u << BITS) - 1u);
        integers.push_back(q);
        for (int bit = 0; bit < BITS; bit++) packed[(i * BITS + bit) / 32] |= (q >> bit & 1u) << ((i * BITS + bit) % 32);
        round_to(float(double(q) * widen(scales[i / GROUP]) + widen(biases[i / GROUP])), weight);
      }
      dense[i] = widen(weight);
    }
  }

  template <int TILES, int ROW_TILES, int SLICE, int WARPS>
  std::vector<T> stream(int first, int count) const {
    std::vector<T> out(count * columns);
    const T* own = x.data() + first * size;
    launch({unsigned(columns + TILES * LINE - 1) / (TILES * LINE), unsigned(count + ROW_TILES * ROWS - 1) / (ROW_TILES * ROWS), 1},
           32 * WARPS, [=, this, &out] {
             stream_linear<T, BITS, GROUP, TILES, ROW_TILES, SLICE, WARPS>(
                 {own, packed.data(), scales.data(), biases.data(), count, size, columns, out.data()});
           });
    return out;
  }
  template <int TILES, int ROW_TILES, int SLICE, int WARPS, int STAGES>
  std::vector<T> block(int first, int count) const {
    std::vector<T> out(count * columns);
    std::vector<uint4> memory(BLOCK_MEMORY<BITS, TILES, ROW_TILES, WARPS, STAGES> / 16);
    const T* own = x.data() + first * size;
    const unsigned tile_columns = WARPS * TILES * LINE;
    launch({unsigned(columns + tile_columns - 1) / tile_columns, unsigned(count + ROW_TILES * ROWS - 1) / (ROW_TILES * ROWS), 1},
           32 * WARPS, [=, this, &out, &memory] {
             block_linear<T, BITS, GROUP, TILES, ROW_TILES, SLICE, WARPS, STAGES>(
                 {own, packed.data(), scales.data(), biases.data(), count, size, columns, out.data()}, memory.data());
           });
    return out;
  }
  double largest_error(const std::vector<T>& out) const {
    double largest = 0;
    for (int row = 0; row < rows; row++)
      for (int column = 0; column < columns; column++) {
        double exact = 0;
        for (int k = 0; k < size; k++) exact += dense[long(column) * size + k] * widen(x[row * size + k]);
        largest = std::max(largest, std::abs(exact - widen(out[row * columns + column])) / (1 + std::abs(exact)));
      }
    return largest;
  }
};

template <typename T>
bool equal(const std::vector<T>& a, const T* b) {
  return std::memcmp(a.data(), b, a.size() * sizeof(T)) == 0;
}

template <typename T, int BITS, int GROUP>
int check(const char* name, int rows, int size, int columns) {
  const Case<T, BITS, GROUP> one(rows, size, columns, 7);
  const auto together = one.template stream<2, 2, 1, 4>(0, rows);
  const double bound = sizeof(T) == 2 && std::is_same_v<T, __half> ? 2e-3 : 1.6e-2;
  int wrong = 0;
  if (!(one.largest_error(together) < bound)) wrong++, std::printf("%s: error %g\n", name, one.largest_error(together));
  for (int row : {0, rows - 1})
    if (!equal(one.template stream<1, 1, 1, 4>(row, 1), together.data() + row * columns))
      wrong++, std::printf("%s: row %d alone differs\n", name, row);
  if (!equal(one.template block<1, 2, 1, 4, 3>(0, rows), together.data())) wrong++, std::printf("%s: block differs\n", name);
  if (!equal(one.template block<2, 4, 1, 2, 2>(1, rows - 1), together.data() + columns))
    wrong++, std::printf("%s: block at another index differs\n", name);
  std::printf("%s: %s\n", name, wrong ? "WRONG" : "right");
  return wrong;
}

int main() {
  int wrong = 0;
  wrong += check<__half, 4, 64>("float16 4 bit", 11, 896, 40);
  wrong += check<__half, 4, 32>("float16 4 bit, groups of 32", 9, 320, 33);
  wrong += check<__half, 8, 64>("float16 8 bit", 9, 384, 24);
  wrong += check<__half, 2, 64>("float16 2 bit", 9, 384, 24);
  wrong += check<__half, 3, 64>("float16 3 bit", 9, 384, 24);
  wrong += check<__half, 5, 64>("float16 5 bit", 9, 384, 24);
  wrong += check<__half, 6, 128>("float16 6 bit", 9, 256, 24);
  wrong += check<__half, 0, 32>("float16 dense", 9, 320, 24);
  wrong += check<__nv_bfloat16, 4, 64>("bfloat16 4 bit", 9, 384, 24);
  wrong += check<__nv_bfloat16, 8, 64>("bfloat16 8 bit", 9, 384, 24);
  wrong += check<__nv_bfloat16, 0, 32>("bfloat16 dense", 9, 320, 24);
  return wrong != 0;
}
