// float32: `float_linear` and `plain_attention` against plain sums in double, for rows alone, at head sizes of all kinds.
#include "emulator.hpp"

#include "primitives.cuh"
#include "float32.cuh"

#include <cstdio>
#include <random>

using namespace divtrace;

template <int SIZE, int WINDOW, bool SINKS>
int check_attention(const char* name) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  const std::vector<int> lengths = {40, 41, 1}, table_of_row = {0, 0, 1};
  const int heads = 4, kv_heads = 2, width = 45, rows = 3;
  std::vector<int> tables(2 * width);
  for (int i = 0; i < 2 * width; i++) tables[i] = 2 * width - 1 - i;
  std::vector<float> queries(rows * heads * SIZE), keys(2 * width * kv_heads * SIZE), values(keys.size()), sinks = {0, 1, 2, 3};
  for (auto* all : {&queries, &keys, &values})
    for (float& value : *all) value = normal(random);
  const float scale = 0.2f;
  auto run = [&](int first, int count) {
    std::vector<float> out(count * heads * SIZE);
    const int sizes[4] = {count, heads, kv_heads, width};
    launch({unsigned(count * heads + 3) / 4, 1, 1}, 128, [&] {
      plain_attention<float, SIZE, WINDOW, SINKS>(
          queries.data() + first * heads * SIZE, keys.data(), values.data(), tables.data(), table_of_row.data() + first,
          lengths.data() + first, sinks.data(), &scale, sizes, out.data());
    });
    return out;
  };
  const auto together = run(0, rows);
  double largest = 0;
  for (int row = 0; row < rows; row++)
    for (int head = 0; head < heads; head++) {
      std::vector<double> sum(SIZE, 0.0);
      double total = SINKS ? std::exp(double(sinks[head])) : 0;
      for (int p = WINDOW ? std::max(0, lengths[row] - WINDOW) : 0; p < lengths[row]; p++) {
        const long place = (long(tables[table_of_row[row] * width + p]) * kv_heads + head / 2) * SIZE;
        double dot = 0;
        for (int d = 0; d < SIZE; d++) dot += double(queries[(row * heads + head) * SIZE + d]) * keys[place + d];
        const double weight = std::exp(dot * scale);
        total += weight;
        for (int d = 0; d < SIZE; d++) sum[d] += weight * values[place + d];
      }
      for (int d = 0; d < SIZE; d++)
        largest = std::max(largest, std::abs(sum[d] / total - together[(row * heads + head) * SIZE + d]));
    }
  int wrong = largest < 1e-5 ? 0 : 1;
  for (int row = 0; row < rows; row++) {
    const auto alone = run(row, 1);
    wrong += std::memcmp(alone.data(), together.data() + row * heads * SIZE, alone.size() * 4) != 0;
  }
  std::printf("%s: %s (error %g)\n", name, wrong ? "WRONG" : "right", largest);
  return wrong;
}

template <int BITS>
int check_linear(const char* name) {
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  const int rows = 11, size = 320, columns = 9;
  std::vector<float> x(rows * size), scales(columns * size / 32), biases(scales.size());
  for (auto* all : {&x, &scales, &biases})
    for (float& value : *all) value = normal(random);
  std::vector<unsigned> packed(columns * size * BITS / 32);
  std::vector<double> dense(columns * size);
  for (int i = 0; i < columns * size; i++) {
    const unsigned q = random() & ((1u << BITS) - 1u);
    for (int bit = 0; bit < BITS; bit++) packed[(i * BITS + bit) / 32] |= (q >> bit & 1u) << ((i * BITS + bit) % 32);
    dense[i] = float(float(q) * scales[i / 32]) + biases[i / 32];
  }
  std::vector<float> together(rows * columns), alone(columns);
  auto run = [&](int first, int count, std::vector<float>& out) {
    launch({unsigned(columns + 3) / 4, unsigned(count + 7) / 8, 1}, 128, [&] {
      float_linear<BITS, 32, 8>(x.data() + first * size, packed.data(), scales.data(), biases.data(), count, size, columns, out.data());
    });
  };
  run(0, rows, together);
  double largest = 0;
  int wrong = 0;
  for (int row = 0; row < rows; row++) {
    for (int column = 0; column < columns; column++) {
      double exact = 0;
      for (int k = 0; k < size; k++) exact += dense[column * size + k] * x[row * size + k];
      largest = std::max(largest, std::abs(exact - together[row * columns + column]) / (1 + std::abs(exact)));
    }
    run(row, 1, alone);
    wrong += std::memcmp(alone.data(), together.data() + row * columns, columns * 4) != 0;
  }
  wrong += !(largest < 1e-3);
  std::printf("%s: %s (error %g)\n", name, wrong ? "WRONG" : "right", largest);
  return wrong;
}

int main() {
  int wrong = 0;
  wrong += check_attention<16, 0, false>("heads of 16");
  wrong += check_attention<80, 0, true>("heads of 80 with sinks");
  wrong += check_attention<96, 7, false>("heads of 96 with a window");
  wrong += check_linear<4>("4 bit");
  wrong += check_linear<3>("3 bit");
  wrong += check_linear<6>("6 bit");
  return wrong != 0;
}
