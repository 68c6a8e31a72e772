// Attention: the walk and the split chunks against a plain softmax in double, against each other, for rows alone, with
// windows, sinks, shuffled slots, and values that are not finite behind what a line sees.
#include "emulator.hpp"

#include "primitives.cuh"
#include "attention_tile.cuh"
#include "attention.cuh"

#include <cstdio>
#include <random>

using namespace divtrace;

struct Segment {
  int table, first_row, rows;
};

template <typename T, int SIZE>
struct Case {
  int heads, kv_heads, width, slots;
  std::vector<Segment> segments;
  std::vector<int> tables, lengths;
  std::vector<T> queries, keys, values;
  std::vector<float> sinks;

  Case(int heads, int kv_heads, std::vector<Segment> segments, std::vector<int> lengths, unsigned seed)
      : heads(heads), kv_heads(kv_heads), segments(segments), lengths(lengths) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    width = *std::max_element(lengths.begin(), lengths.end()) + 3;
    slots = width * int(segments.size());
    for (int i = 0; i < slots; i++) tables.push_back(i);
    std::shuffle(tables.begin(), tables.end(), random);
    queries.resize(lengths.size() * heads * SIZE), keys.resize(long(slots) * kv_heads * SIZE), values.resize(keys.size());
    for (auto* all : {&queries, &keys, &values})
      for (T& value : *all) round_to(normal(random), value);
    for (int h = 0; h < heads; h++) sinks.push_back(normal(random));
  }

  std::vector<int> tiles(const std::vector<Segment>& chosen, int multiple) const {
    std::vector<int> out;
    for (const Segment& s : chosen) {
      const int lines = s.rows * (heads / kv_heads);
      for (int first = 0; first < lines || first / LINES % multiple; first += LINES)
        out.insert(out.end(), {s.table, s.first_row, first, lines});
    }
    return out;
  }

  template <int WINDOW, bool SINKS>
  std::vector<T> walk(const std::vector<Segment>& chosen) const {
    const std::vector<int> tiling = tiles(chosen, 2);
    const unsigned count = unsigned(tiling.size() / 4);
    const int sizes[6] = {int(lengths.size()), heads, kv_heads, width, int(count), 0};
    const float scale = 1 / std::sqrt(float(SIZE));
    std::vector<T> out(queries.size());
    std::vector<uint4> memory(WALK_MEMORY<SIZE> / 16);
    launch({count / 2, unsigned(kv_heads), 1}, 64, [&, this] {
      walk_attention<T, SIZE, WINDOW, SINKS, 2>(queries.data(), keys.data(), values.data(), tables.data(), tiling.data(),
                                                lengths.data(), sinks.data(), &scale, sizes, out.data(), memory.data());
    });
    return out;
  }
  template <int WINDOW, bool SINKS>
  std::vector<T> split() const {
    const std::vector<int> tiling = tiles(segments, 1);
    const unsigned count = unsigned(tiling.size() / 4);
    const int chunks = (*std::max_element(lengths.begin(), lengths.end()) + CHUNK - 1) / CHUNK;
    const int sizes[6] = {int(lengths.size()), heads, kv_heads, width, int(count), chunks};
    const float scale = 1 / std::sqrt(float(SIZE));
    std::vector<float> partial(queries.size() * chunks, NAN), stats(queries.size() / SIZE * chunks * 2, NAN);
    std::vector<T> out(queries.size());
    launch({unsigned(chunks), count, unsigned(kv_heads)}, 32, [&, this] {
      chunk_attention<T, SIZE, WINDOW>(queries.data(), keys.data(), values.data(), tables.data(), tiling.data(),
                                       lengths.data(), &scale, sizes, partial.data(), stats.data());
    });
    launch({unsigned(lengths.size() * heads + 3) / 4, 1, 1}, 128, [&, this] {
      merge_chunks<T, SIZE, WINDOW, SINKS>(partial.data(), stats.data(), lengths.data(), sinks.data(), sizes, out.data());
    });
    return out;
  }

  template <int WINDOW, bool SINKS>
  double largest_error(const std::vector<T>& out) const {
    double largest = 0;
    for (const Segment& s : segments)
      for (int row = s.first_row; row < s.first_row + s.rows; row++)
        for (int head = 0; head < heads; head++) {
          const int length = lengths[row], first = WINDOW ? std::max(0, length - WINDOW) : 0;
          std::vector<double> scores, sum(SIZE, 0.0);
          double total = SINKS ? std::exp(double(sinks[head])) : 0;
          for (int p = first; p < length; p++) {
            const long place = (long(tables[s.table * width + p]) * kv_heads + head / (heads / kv_heads)) * SIZE;
            double dot = 0;
            for (int d = 0; d < SIZE; d++)
              dot += double(widen(queries[(long(row) * heads + head) * SIZE + d])) * widen(keys[place + d]);
            const double weight = std::exp(dot / std::sqrt(double(SIZE)));
            total += weight;
            for (int d = 0; d < SIZE; d++) sum[d] += weight * widen(values[place + d]);
          }
          for (int d = 0; d < SIZE; d++)
            largest = std::max(largest, std::abs(sum[d] / total - widen(out[(long(row) * heads + head) * SIZE + d])));
        }
    return largest;
  }
};

template <typename T, int SIZE, int WINDOW, bool SINKS>
int check(const char* name, int heads, int kv_heads) {
  // A prefill of five rows that ends at 70 keys, a decode at 131 keys, one at a single key.
  const std::vector<Segment> segments = {{0, 0, 5}, {1, 5, 1}, {2, 6, 1}};
  Case<T, SIZE> one(heads, kv_heads, segments, {66, 67, 68, 69, 70, 131, 1}, 3);
  const auto walked = one.template walk<WINDOW, SINKS>(segments);
  const auto split = one.template split<WINDOW, SINKS>();
  int wrong = 0;
  const double error = one.template largest_error<WINDOW, SINKS>(walked);
  if (!(error < (std::is_same_v<T, __half> ? 2e-3 : 2e-2))) wrong++, std::printf("%s: error %g\n", name, error);
  if (std::memcmp(walked.data(), split.data(), walked.size() * sizeof(T))) wrong++, std::printf("%s: split differs\n", name);
  std::vector<Segment> alone;
  for (const Segment& s : segments)
    for (int row = 0; row < s.rows; row++) alone.push_back({s.table, s.first_row + row, 1});
  const auto rows_alone = one.template walk<WINDOW, SINKS>(alone);
  if (std::memcmp(walked.data(), rows_alone.data(), walked.size() * sizeof(T)))
    wrong++, std::printf("%s: rows alone differ\n", name);
  // What only the last row of the prefill sees becomes NaN: the rows before it must not notice.
  const long slot = one.tables[69];
  for (int d = 0; d < kv_heads * SIZE; d++) round_to(NAN, one.values[slot * kv_heads * SIZE + d]);
  const auto poisoned = one.template walk<WINDOW, SINKS>(segments);
  const long before = 4L * heads * SIZE, after = 5L * heads * SIZE;
  if (std::memcmp(walked.data(), poisoned.data(), before * sizeof(T))) wrong++, std::printf("%s: NaN leaks\n", name);
  if (!std::isnan(widen(poisoned[before]))) wrong++, std::printf("%s: NaN is lost\n", name);
  if (std::memcmp(walked.data() + after, poisoned.data() + after, (walked.size() - after) * sizeof(T)))
    wrong++, std::printf("%s: NaN reaches another request\n", name);
  std::printf("%s: %s\n", name, wrong ? "WRONG" : "right");
  return wrong;
}

int main() {
  int wrong = 0;
  wrong += check<__half, 64, 0, false>("float16, 6/2 heads of 64", 6, 2);
  wrong += check<__half, 128, 0, false>("float16, 7/1 heads of 128", 7, 1);
  wrong += check<__half, 64, 0, true>("float16, sinks", 4, 1);
  wrong += check<__half, 64, 40, true>("float16, window and sinks", 2, 2);
  wrong += check<__nv_bfloat16, 64, 0, false>("bfloat16, 3/1 heads of 64", 3, 1);
  return wrong != 0;
}
