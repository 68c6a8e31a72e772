// Runs the CUDA sources on a processor: one thread a CUDA thread, barriers for warps and blocks, blocks one by one.
// Sums of the emulated tensor-core instruction are taken in double and rounded once, so results are near the device's,
// not equal to them; what is compared bit by bit is emulated against emulated.
#pragma once
#define EMULATED
#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#define __device__
#define __shared__ static
using std::max;
using std::min;

struct Index {
  unsigned x = 0, y = 0, z = 0;
};
inline thread_local Index threadIdx, blockIdx;
inline Index blockDim, gridDim;

struct uint4 {
  unsigned x, y, z, w;
};
struct float4 {
  float x, y, z, w;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

struct __half {
  _Float16 value;
};
struct __nv_bfloat16 {
  uint16_t bits;
};
inline float widen(float value) { return value; }
inline float widen(__half value) { return float(value.value); }
inline float widen(__nv_bfloat16 value) {
  const unsigned wide = unsigned(value.bits) << 16;
  float out;
  std::memcpy(&out, &wide, 4);
  return out;
}
inline void round_to(float value, float& out) { out = value; }
inline void round_to(float value, __half& out) { out.value = _Float16(value); }
inline void round_to(float value, __nv_bfloat16& out) {
  unsigned bits;
  std::memcpy(&bits, &value, 4);
  out.bits = std::isnan(value) ? 0x7fc0 : uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
template <typename T>
unsigned pack_pair(T low, T high) {
  uint16_t halves[2];
  std::memcpy(&halves[0], &low, 2);
  std::memcpy(&halves[1], &high, 2);
  return halves[0] | unsigned(halves[1]) << 16;
}
template <typename T>
T half_of(unsigned pair, int which) {
  const uint16_t bits = uint16_t(pair >> (16 * which));
  T out;
  std::memcpy(&out, &bits, 2);
  return out;
}

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fmaf(a, b, c); }
inline float __int_as_float(unsigned bits) {
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t both = a | uint64_t(b) << 32;
  unsigned out = 0;
  for (int i = 0; i < 4; i++) out |= unsigned(both >> (8 * (selector >> (4 * i) & 7)) & 0xff) << (8 * i);
  return out;
}

struct Warp {
  std::barrier<> barrier{32};
  unsigned words[32][6];
  float values[32];
  bool votes[32];
};
inline std::vector<std::unique_ptr<Warp>> warps;
inline std::unique_ptr<std::barrier<>> block_barrier;
inline Warp& own_warp() { return *warps[threadIdx.x / 32]; }
inline void __syncthreads() { block_barrier->arrive_and_wait(); }
inline void __syncwarp() { own_warp().barrier.arrive_and_wait(); }
inline float __shfl_xor_sync(unsigned, float value, int distance) {
  Warp& warp = own_warp();
  warp.values[threadIdx.x % 32] = value;
  warp.barrier.arrive_and_wait();
  const float out = warp.values[threadIdx.x % 32 ^ distance];
  warp.barrier.arrive_and_wait();
  return out;
}
inline float __shfl_sync(unsigned, float value, int lane) {
  Warp& warp = own_warp();
  warp.values[threadIdx.x % 32] = value;
  warp.barrier.arrive_and_wait();
  const float out = warp.values[lane];
  warp.barrier.arrive_and_wait();
  return out;
}
inline bool __any_sync(unsigned, bool vote) {
  Warp& warp = own_warp();
  warp.votes[threadIdx.x % 32] = vote;
  warp.barrier.arrive_and_wait();
  const bool out = std::any_of(warp.votes, warp.votes + 32, [](bool v) { return v; });
  warp.barrier.arrive_and_wait();
  return out;
}

inline int reduce(int value, bool largest) {
  Warp& warp = own_warp();
  warp.words[threadIdx.x % 32][0] = unsigned(value);
  warp.barrier.arrive_and_wait();
  int out = value;
  for (int lane = 0; lane < 32; lane++) {
    const int other = int(warp.words[lane][0]);
    out = largest ? std::max(out, other) : std::min(out, other);
  }
  warp.barrier.arrive_and_wait();
  return out;
}
inline int __reduce_max_sync(unsigned, int value) { return reduce(value, true); }
inline int __reduce_min_sync(unsigned, int value) { return reduce(value, false); }

namespace divtrace {
template <typename T>
unsigned fma_pair(unsigned a, unsigned b, unsigned c) {
  T out[2];
  for (int i = 0; i < 2; i++)
    round_to(float(double(widen(half_of<T>(a, i))) * widen(half_of<T>(b, i)) + widen(half_of<T>(c, i))), out[i]);
  return pack_pair(out[0], out[1]);
}
// m16n8k16: operands and sums lie in the threads as the PTX ISA says (section 9.7.14, mma.m16n8k16).
template <typename T>
void multiply_tile(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  Warp& warp = own_warp();
  const int lane = threadIdx.x % 32, line = lane / 4, quarter = lane % 4;
  unsigned* own = warp.words[lane];
  own[0] = a[0], own[1] = a[1], own[2] = a[2], own[3] = a[3], own[4] = b0, own[5] = b1;
  warp.barrier.arrive_and_wait();
  for (int i = 0; i < 4; i++) {
    const int row = line + i / 2 * 8, column = 2 * quarter + i % 2;
    double total = c[i];
    for (int k = 0; k < 16; k++) {
      const unsigned left = warp.words[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2];
      const unsigned right = warp.words[column * 4 + k % 8 / 2][4 + k / 8];
      total += double(widen(half_of<T>(left, k % 2))) * widen(half_of<T>(right, k % 2));
    }
    c[i] = float(total);
  }
  warp.barrier.arrive_and_wait();
}
template <int BYTES>
void copy_async(void* to, const void* from, bool there) {
  if (there) std::memcpy(to, from, BYTES);
  else std::memset(to, 0, BYTES);
}
inline void prefetch(const void*) {}
inline void commit_async() {}
template <int GROUPS>
void wait_async() {}
}  // namespace divtrace

template <typename Kernel>
void launch(Index grid, unsigned threads, Kernel kernel) {
  gridDim = grid, blockDim = {threads, 1, 1};
  for (unsigned z = 0; z < grid.z; z++)
    for (unsigned y = 0; y < grid.y; y++)
      for (unsigned x = 0; x < grid.x; x++) {
        warps.clear();
        for (unsigned w = 0; w < threads / 32; w++) warps.push_back(std::make_unique<Warp>());
        block_barrier = std::make_unique<std::barrier<>>(threads);
        std::vector<std::thread> running;
        for (unsigned t = 0; t < threads; t++)
          running.emplace_back([=] {
            threadIdx = {t, 0, 0}, blockIdx = {x, y, z};
            kernel();
          });
        for (auto& thread : running) thread.join();
      }
}
