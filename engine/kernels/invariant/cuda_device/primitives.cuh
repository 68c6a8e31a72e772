// What the half-precision kernels are made of: pairs of halves in one register, the tensor-core instruction, packed
// weights made into pairs. Owns no sum: the order of every addition is written in linear.cuh and attention.cuh.
// `EMULATED` is set by tests that run these sources on a processor; they bring their own instructions.
#pragma once

#ifndef NEGATIVE_INFINITY
#define NEGATIVE_INFINITY __int_as_float(0xff800000)
#endif

namespace divtrace {

#ifndef EMULATED
__device__ inline unsigned pack_pair(__half low, __half high) {
  __half2 pair = __halves2half2(low, high);
  return *reinterpret_cast<unsigned*>(&pair);
}
__device__ inline unsigned pack_pair(__nv_bfloat16 low, __nv_bfloat16 high) {
  __nv_bfloat162 pair = __halves2bfloat162(low, high);
  return *reinterpret_cast<unsigned*>(&pair);
}
__device__ inline void round_to(float value, __half& out) { out = __float2half_rn(value); }
__device__ inline void round_to(float value, __nv_bfloat16& out) { out = __float2bfloat16_rn(value); }
__device__ inline void round_to(float value, float& out) { out = value; }
__device__ inline float widen(float value) { return value; }
__device__ inline float widen(__half value) { return __half2float(value); }
__device__ inline float widen(__nv_bfloat16 value) { return __bfloat162float(value); }

// a * b + c of both halves, each rounded once.
template <typename T>
__device__ unsigned fma_pair(unsigned a, unsigned b, unsigned c);
template <>
__device__ inline unsigned fma_pair<__half>(unsigned a, unsigned b, unsigned c) {
  unsigned d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
template <>
__device__ inline unsigned fma_pair<__nv_bfloat16>(unsigned a, unsigned b, unsigned c) {
  unsigned d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// c += a (16 x 16) * b (16 x 8), accumulated in float32.
template <typename T>
__device__ void multiply_tile(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1);
template <>
__device__ inline void multiply_tile<__half>(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ inline void multiply_tile<__nv_bfloat16>(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Copies BYTES from global to shared memory in the background; zeros when there is nothing to copy.
template <int BYTES>
__device__ inline void copy_async(void* to, const void* from, bool there) {
  const unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(to));
  const int bytes = there ? BYTES : 0;
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(place), "l"(from), "r"(bytes) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(place), "l"(from), "r"(bytes) : "memory");
}
__device__ inline void prefetch(const void* place) { asm volatile("prefetch.global.L2 [%0];" ::"l"(place)); }
__device__ inline void commit_async() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int GROUPS>
__device__ inline void wait_async() {
  asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
}
#endif

// Bit patterns of a type's constants, twice in a register. `OFFSET` | q is the number `2**digits + q` exactly.
template <typename T>
struct Patterns;
template <>
struct Patterns<__half> {
  static constexpr unsigned ONE = 0x3c003c00u, OFFSET = 0x64006400u, MINUS_OFFSET = 0xe400e400u;  // 1024
  static constexpr unsigned EXPONENT = 0x7c00u;  // all ones: infinite or NaN
};
template <>
struct Patterns<__nv_bfloat16> {
  static constexpr unsigned ONE = 0x3f803f80u, OFFSET = 0x43004300u, MINUS_OFFSET = 0xc300c300u;  // 128
  static constexpr unsigned SIXTEEN = 0x41804180u;
  static constexpr unsigned EXPONENT = 0x7f80u;
};

template <typename T>
__device__ inline unsigned twice(T value) {
  return pack_pair(value, value);
}

// Thirty-two weights of one output column in one thread, as they lie in memory: BITS words, or sixteen for BITS 0.
template <int BITS>
struct Run {
  static constexpr int WORDS = BITS == 0 ? 16 : BITS;
  unsigned words[WORDS];

  __device__ inline void load(const void* start) {
    if constexpr (WORDS % 4 == 0) {
#pragma unroll
      for (int i = 0; i < WORDS / 4; i++) {
        const uint4 four = reinterpret_cast<const uint4*>(start)[i];
        words[4 * i] = four.x, words[4 * i + 1] = four.y, words[4 * i + 2] = four.z, words[4 * i + 3] = four.w;
      }
    } else {
#pragma unroll
      for (int i = 0; i < WORDS; i++) words[i] = reinterpret_cast<const unsigned*>(start)[i];
    }
  }
  __device__ inline void clear() {
#pragma unroll
    for (int i = 0; i < WORDS; i++) words[i] = 0u;
  }
  // Weight `index` (a constant after unrolling) of the run as an integer.
  __device__ inline unsigned weight(int index) const {
    const int bit = index * BITS, word = bit / 32, shift = bit % 32;
    unsigned value = words[word] >> shift;
    if (shift + BITS > 32) value |= words[word + 1] << (32 - shift);
    return value & ((1u << BITS) - 1u);
  }
};

// Eight integers of a run as pairs (0, 1) to (6, 7), exact in T: a number's bits beside an offset's, the offset taken off.
template <int BITS, typename T>
__device__ inline void integer_pairs(const Run<BITS>& run, int unit, unsigned (&pairs)[4]) {
  using P = Patterns<T>;
  if constexpr (BITS == 4) {
    const unsigned even = run.words[unit], odd = even >> 4;
#pragma unroll
    for (int i = 0; i < 4; i++) pairs[i] = __byte_perm(even, odd, i | (4 + i) << 8) & 0x000f000fu | P::OFFSET;
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++)
      pairs[i] = run.weight(8 * unit + 2 * i) | run.weight(8 * unit + 2 * i + 1) << 16 | P::OFFSET;
  }
#pragma unroll
  for (int i = 0; i < 4; i++) pairs[i] = fma_pair<T>(pairs[i], P::ONE, P::MINUS_OFFSET);
}

// Eight bits do not fit beside bfloat16's offset: sixteen times the upper four and the lower four.
template <>
__device__ inline void integer_pairs<8, __nv_bfloat16>(const Run<8>& run, int unit, unsigned (&pairs)[4]) {
  using P = Patterns<__nv_bfloat16>;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const unsigned both = run.weight(8 * unit + 2 * i) | run.weight(8 * unit + 2 * i + 1) << 16;
    const unsigned low = fma_pair<__nv_bfloat16>(both & 0x000f000fu | P::OFFSET, P::ONE, P::MINUS_OFFSET);
    const unsigned high = fma_pair<__nv_bfloat16>(both >> 4 & 0x000f000fu | P::OFFSET, P::ONE, P::MINUS_OFFSET);
    pairs[i] = fma_pair<__nv_bfloat16>(high, P::SIXTEEN, low);
  }
}

// Weights 8 * unit to 8 * unit + 7 of a run: q * scale + bias, rounded once to T; `scale` and `bias` hold it twice.
template <int BITS, typename T>
__device__ inline void weight_pairs(const Run<BITS>& run, int unit, unsigned scale, unsigned bias, unsigned (&pairs)[4]) {
  if constexpr (BITS == 0) {
#pragma unroll
    for (int i = 0; i < 4; i++) pairs[i] = run.words[4 * unit + i];
  } else {
    integer_pairs<BITS, T>(run, unit, pairs);
#pragma unroll
    for (int i = 0; i < 4; i++) pairs[i] = fma_pair<T>(pairs[i], scale, bias);
  }
}

}  // namespace divtrace
