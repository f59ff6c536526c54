// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <climits>
#include <cub/block/block_radix_sort.cuh>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/device/warp.cuh"
#include "engine/sparse/cuda/launcher.cuh"
#include "engine/sparse/cuda/products.cuh"
#include "engine/sparse/cuda/reuse_plan.h"
#include "engine/sparse/cuda/search.cuh"
#include "engine/sparse/cuda/semirings.cuh"

namespace intrawarp::cuda::spgemm {
namespace {

// kPiece: products that a block stages before it sums them. kLong: products of an entry within a piece from which a
// whole warp sums them.
constexpr int kPiece = 2048;
constexpr unsigned kLong = 64;

// products[i] = the number of products of entry i of A; 0 behind the last entry.
__global__ void CountKernel(ConstPatternView a, ConstPatternView b, unsigned* products) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i > a.entries) return;
  const RowOfB row(a, b, i, a.entries);
  products[i] = static_cast<unsigned>(row.to - row.from);
}

// Finds the entry of C, and the indices in A and B, of each product. A warp takes 32 entries of A; firsts[i] is the
// number of the first product of entry i.
__global__ void PlaceKernel(ConstPatternView a, ConstPatternView b, ConstPatternView c, const unsigned* firsts,
                            unsigned* places, uint2* pairs) {
  const int64_t base = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32 * 32, i = base + threadIdx.x % 32;
  if (base >= a.entries) return;
  const RowOfB mine(a, b, i, a.entries);
  const int64_t shift = i < a.entries ? firsts[i] - mine.from : 0;
  int64_t c_begin = 0, c_end = 0;
  if (i < a.entries) {
    const int64_t row = LowerBound(a.row_offsets + 1, int64_t{0}, int64_t{a.rows}, i + 1);
    c_begin = c.row_offsets[row];
    c_end = c.row_offsets[row + 1];
  }
  ForProducts<2>(mine.from, mine.to, [&](const Products<2>& p) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int64_t begin = __shfl_sync(kAllLanes, c_begin, p.entry[h]),
                    end = __shfl_sync(kAllLanes, c_end, p.entry[h]);
      const int64_t number = p.at[h] + __shfl_sync(kAllLanes, shift, p.entry[h]);
      if (p.at[h] < 0) continue;
      const int32_t column = b.column_indices[p.at[h]];
      places[number] = static_cast<unsigned>(LowerBound(c.column_indices, begin, end, column));
      pairs[number] = {static_cast<unsigned>(base + p.entry[h]), static_cast<unsigned>(p.at[h])};
    }
  });
}

// Finds where the products of each entry of C begin, from the sorted `places` of all products; starts[entries] =
// products.
__global__ void StartKernel(const unsigned* places, unsigned products, unsigned entries, unsigned* starts) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= products) return;
  if (i == 0 || places[i] != places[i - 1]) starts[places[i]] = static_cast<unsigned>(i);
  if (i == 0) starts[entries] = products;
}

// The entries of a block of kThreads: kEach for each thread, or one for kLanes threads together.
template <int kEachOf, int kLanesOf>
struct Shape {
  static constexpr int kEach = kEachOf, kLanes = kLanesOf;
  static constexpr int kEntries = kThreads * kEach / kLanes;
};

// Calls body(Shape) with the shape whose blocks have about kPiece products.
template <typename Body>
auto WithShape(int64_t products, int64_t entries, const Body& body) {
  if (products > 24 * entries) return body(Shape<1, 8>());
  if (products > 6 * entries) return body(Shape<1, 4>());
  if (products > 3 * entries) return body(Shape<2, 1>());
  return body(Shape<4, 1>());
}
constexpr int kFewestEntries = Shape<1, 8>::kEntries;

// A product in its piece: the index in B, the index in A less the block's base, and its number in the piece.
__device__ uint2 Packed(unsigned b, unsigned a, unsigned slot) { return {b, a << 16 | slot}; }
static_assert(kPiece <= 1 << 16);

// Reorders the products of each piece by their rows of B, so that neighbouring threads read neighbouring values, and
// writes the base of each block. Sets *too_wide to 1 instead when the indices in A of a block are too far apart.
template <typename Shape>
__global__ void __launch_bounds__(kThreads)
    PackKernel(uint2* pairs, const unsigned* __restrict__ starts, int64_t entries, unsigned* bases, int* too_wide) {
  constexpr int kItems = kPiece / kThreads, kKeyBits = 17;
  using Sort = cub::BlockRadixSort<unsigned, kThreads, kItems, uint2>;
  __shared__ typename Sort::TempStorage scratch;
  __shared__ unsigned least, most;
  const int64_t first = int64_t{blockIdx.x} * Shape::kEntries;
  const unsigned begin = starts[first], end = starts[min(first + Shape::kEntries, entries)];
  if (threadIdx.x == 0) {
    least = UINT_MAX;
    most = 0;
  }
  __syncthreads();
  unsigned low = UINT_MAX, high = 0;
  for (unsigned p = begin + threadIdx.x; p < end; p += kThreads) {
    low = min(low, pairs[p].x);
    high = max(high, pairs[p].x);
  }
  atomicMin(&least, low);
  atomicMax(&most, high);
  __syncthreads();
  const unsigned base = least;
  if (most - base >> 16 != 0) {
    if (threadIdx.x == 0) *too_wide = 1;
    return;
  }
  if (threadIdx.x == 0) bases[blockIdx.x] = base;
  for (unsigned piece = begin; piece < end; piece += kPiece) {
    const unsigned count = min(end - piece, static_cast<unsigned>(kPiece));
    unsigned keys[kItems];
    uint2 products[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const unsigned slot = threadIdx.x * kItems + i;
      keys[i] = 1u << 16;
      if (slot >= count) continue;
      const uint2 at = pairs[piece + slot];
      keys[i] = at.x - base;
      products[i] = Packed(at.y, at.x - base, slot);
    }
    __syncthreads();
    Sort(scratch).SortBlockedToStriped(keys, products, 0, kKeyBits);
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const unsigned p = i * kThreads + threadIdx.x;
      if (p < count) pairs[piece + p] = products[i];
    }
    __syncthreads();
  }
}

// The sum of products [low, high) of a piece, for all kLanes neighbouring threads of an entry. These threads add a
// short range, the whole warp a long one. All threads of a warp call it.
template <typename T, typename Ring, int kLanes>
__device__ T SumProducts(const T* products, unsigned low, unsigned high) {
  const int lane = threadIdx.x % 32;
  T sum = Ring::Identity();
  const bool is_long = high > low + kLong * kLanes;
  if (!is_long) {
    for (unsigned p = low + lane % kLanes; p < high; p += kLanes) sum = Ring::Join(sum, products[p]);
  }
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    sum = Ring::Join(sum, __shfl_xor_sync(kAllLanes, sum, offset));
  }
  unsigned left = __ballot_sync(kAllLanes, is_long);
  while (left != 0) {
    const int owner = __ffs(left) - 1;
    left &= ~(((kLanes == 32 ? 0u : 1u << kLanes) - 1) << owner);
    const unsigned from = __shfl_sync(kAllLanes, low, owner), to = __shfl_sync(kAllLanes, high, owner);
    T part = Ring::Identity();
    for (unsigned p = from + lane; p < to; p += 32) part = Ring::Join(part, products[p]);
    for (int offset = 16; offset > 0; offset /= 2) part = Ring::Join(part, __shfl_xor_sync(kAllLanes, part, offset));
    if (lane / kLanes == owner / kLanes) sum = part;
  }
  return sum;
}

// Computes the values of C; neighbouring threads compute neighbouring entries.
template <typename T, typename Ring, typename Shape>
__global__ void __launch_bounds__(kThreads)
    ReuseKernel(const uint2* __restrict__ pairs, const unsigned* __restrict__ starts,
                const unsigned* __restrict__ bases, int64_t entries, const T* __restrict__ a, const T* __restrict__ b,
                T alpha, T* __restrict__ values) {
  constexpr int kItems = kPiece / kThreads, kEach = Shape::kEach, kLanes = Shape::kLanes;
  __shared__ T products[kPiece];
  const int64_t first = int64_t{blockIdx.x} * Shape::kEntries;
  unsigned low[kEach], high[kEach];
  T sums[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int64_t e = first + (k * kThreads + threadIdx.x) / kLanes;
    low[k] = starts[min(e, entries)];
    high[k] = starts[min(e + 1, entries)];
    sums[k] = Ring::Identity();
  }
  const unsigned end = starts[min(first + Shape::kEntries, entries)];
  const T* const block_a = a + bases[blockIdx.x];
  for (unsigned begin = starts[first]; begin < end; begin += kPiece) {
    const unsigned count = min(end - begin, static_cast<unsigned>(kPiece));
    uint2 at[kItems] = {};
#pragma unroll
    for (int h = 0; h < kItems; ++h) {
      const unsigned p = h * kThreads + threadIdx.x;
      if (p < count) at[h] = __ldcs(pairs + begin + p);
    }
#pragma unroll
    for (int h = 0; h < kItems; ++h) {
      if (h * kThreads + threadIdx.x < count) {
        products[at[h].y & 0xffff] = Ring::Add(Ring::Identity(), block_a[at[h].y >> 16], b[at[h].x]);
      }
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const unsigned from = max(low[k], begin) - begin, to = min(max(high[k], begin) - begin, count);
      sums[k] = Ring::Join(sums[k], SumProducts<T, Ring, kLanes>(products, from, to));
    }
    __syncthreads();
  }
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int64_t e = first + (k * kThreads + threadIdx.x) / kLanes;
    if (threadIdx.x % kLanes == 0 && e < entries) values[e] = alpha == T{1} ? sums[k] : alpha * sums[k];
  }
}

// The buffers that MakeReusePlan frees on return.
struct Scratch {
  Buffer firsts, places, other_places, other_pairs, temporary;
};

int BitsOf(int64_t entries) {
  return std::max(1, static_cast<int>(std::bit_width(static_cast<uint64_t>(entries - 1))));
}

unsigned BlocksOf(int64_t entries, int of_block) { return static_cast<unsigned>((entries + of_block - 1) / of_block); }

template <typename T, typename Ring>
absl::Status ExecuteOver(const ExecContext& ctx, const ReusePlan& plan, int64_t entries, const ConstCsrView& a,
                         const ConstCsrView& b, double alpha, void* values) {
  return WithShape(plan.multiplications(), entries, [&](auto shape) -> absl::Status {
    using Shape = decltype(shape);
    ReuseKernel<T, Ring, Shape><<<BlocksOf(entries, Shape::kEntries), kThreads, 0, CudaStream(ctx)>>>(
        plan.pairs.as<uint2>(), plan.starts.as<unsigned>(), plan.bases.as<unsigned>(), entries,
        static_cast<const T*>(a.values), static_cast<const T*>(b.values), static_cast<T>(alpha),
        static_cast<T*>(values));
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    return absl::OkStatus();
  });
}

template <typename T>
absl::Status ExecuteAs(const ExecContext& ctx, const ReusePlan& plan, int64_t entries, const ConstCsrView& a,
                       const ConstCsrView& b, Semiring semiring, double alpha, void* values) {
  switch (semiring) {
    case Semiring::kPlusTimes:
      return ExecuteOver<T, PlusTimes<T>>(ctx, plan, entries, a, b, alpha, values);
    case Semiring::kOrAnd:
      return ExecuteOver<T, OrAnd<T>>(ctx, plan, entries, a, b, alpha, values);
    case Semiring::kMinPlus:
      return ExecuteOver<T, MinPlus<T>>(ctx, plan, entries, a, b, alpha, values);
  }
  return absl::UnimplementedError("semiring: not on CUDA yet");
}

// Turns pairs of indices into the form that ReuseKernel reads; empties the plan if they don't fit that form. Waits.
absl::Status Pack(const ExecContext& ctx, int64_t entries, ReusePlan* plan) {
  Device& device = ctx.device();
  INTRAWARP_ASSIGN_OR_RETURN(const Buffer too_wide, device.Allocate(sizeof(int), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(device.Fill(too_wide.as<void>(), 0, sizeof(int), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(WithShape(plan->multiplications(), entries, [&](auto shape) -> absl::Status {
    using Shape = decltype(shape);
    const unsigned blocks = BlocksOf(entries, Shape::kEntries);
    INTRAWARP_ASSIGN_OR_RETURN(plan->bases, device.Allocate(blocks * sizeof(unsigned), ctx.stream()));
    PackKernel<Shape><<<blocks, kThreads, 0, CudaStream(ctx)>>>(
        plan->pairs.as<uint2>(), plan->starts.as<unsigned>(), entries, plan->bases.as<unsigned>(), too_wide.as<int>());
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    return absl::OkStatus();
  }));
  int on_host = 0;
  INTRAWARP_RETURN_IF_ERROR(device.Copy(&on_host, too_wide.as<void>(), sizeof(int), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(device.Synchronize(ctx.stream()));
  if (on_host != 0) *plan = ReusePlan();
  return absl::OkStatus();
}

// Makes the pairs of all products, sorted by entries of C, and where each entry's pairs start.
absl::Status SortProducts(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                          const ConstPatternView& c, int64_t products, ReusePlan* plan) {
  Device& device = ctx.device();
  const cudaStream_t stream = CudaStream(ctx);
  const auto allocate = [&](int64_t count, size_t size) { return device.Allocate(count * size, ctx.stream()); };
  Scratch s;
  INTRAWARP_ASSIGN_OR_RETURN(plan->starts, allocate(c.entries + 1, sizeof(unsigned)));
  INTRAWARP_ASSIGN_OR_RETURN(s.firsts, allocate(a.entries + 1, sizeof(unsigned)));
  INTRAWARP_ASSIGN_OR_RETURN(s.places, allocate(products, sizeof(unsigned)));
  INTRAWARP_ASSIGN_OR_RETURN(s.other_places, allocate(products, sizeof(unsigned)));
  INTRAWARP_ASSIGN_OR_RETURN(plan->pairs, allocate(products, sizeof(uint2)));
  INTRAWARP_ASSIGN_OR_RETURN(s.other_pairs, allocate(products, sizeof(uint2)));

  unsigned* const firsts = s.firsts.as<unsigned>();
  cub::DoubleBuffer<unsigned> places(s.places.as<unsigned>(), s.other_places.as<unsigned>());
  cub::DoubleBuffer<unsigned long long> pairs(plan->pairs.as<unsigned long long>(),
                                              s.other_pairs.as<unsigned long long>());
  size_t scan_bytes = 0, sort_bytes = 0;
  INTRAWARP_CUDA_RETURN_IF_ERROR(
      cub::DeviceScan::ExclusiveSum(nullptr, scan_bytes, firsts, firsts, a.entries + 1, stream));
  INTRAWARP_CUDA_RETURN_IF_ERROR(
      cub::DeviceRadixSort::SortPairs(nullptr, sort_bytes, places, pairs, products, 0, BitsOf(c.entries), stream));
  INTRAWARP_ASSIGN_OR_RETURN(s.temporary, device.Allocate(std::max(scan_bytes, sort_bytes), ctx.stream()));

  CountKernel<<<BlocksFor(a.entries + 1), kThreads, 0, stream>>>(a, b, firsts);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  INTRAWARP_CUDA_RETURN_IF_ERROR(
      cub::DeviceScan::ExclusiveSum(s.temporary.as<void>(), scan_bytes, firsts, firsts, a.entries + 1, stream));
  PlaceKernel<<<BlocksFor(a.entries), kThreads, 0, stream>>>(a, b, c, firsts, places.Current(),
                                                             reinterpret_cast<uint2*>(pairs.Current()));
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  INTRAWARP_CUDA_RETURN_IF_ERROR(cub::DeviceRadixSort::SortPairs(s.temporary.as<void>(), sort_bytes, places, pairs,
                                                                 products, 0, BitsOf(c.entries), stream));
  StartKernel<<<BlocksFor(products), kThreads, 0, stream>>>(
      places.Current(), static_cast<unsigned>(products), static_cast<unsigned>(c.entries), plan->starts.as<unsigned>());
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  if (pairs.Current() == s.other_pairs.as<unsigned long long>()) std::swap(plan->pairs, s.other_pairs);
  return absl::OkStatus();
}

}  // namespace

int64_t ReusePlan::MostBytes(int64_t multiplications, int64_t a_entries, int64_t entries) {
  // Pairs and places twice, for the sort; the temporary memory of the sort and the scan is a few MB.
  constexpr int64_t kTemporary = int64_t{16} << 20;
  return multiplications * 2 * static_cast<int64_t>(sizeof(uint2) + sizeof(unsigned)) +
         (a_entries + entries + entries / kFewestEntries + 3) * static_cast<int64_t>(sizeof(unsigned)) + kTemporary;
}

absl::StatusOr<ReusePlan> MakeReusePlan(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                                        const ConstPatternView& c, int64_t multiplications) {
  if (!ReusePlanFits(a.entries, b.entries, multiplications)) {
    return absl::InvalidArgumentError(absl::StrCat("a reuse plan of ", multiplications, " multiplications of ",
                                                   a.entries, " and ", b.entries, " entries; it takes ",
                                                   kMaxReuseMultiplications, " of ", kMaxReuseEntries, " at most"));
  }
  ReusePlan plan;
  INTRAWARP_RETURN_IF_ERROR(SortProducts(ctx, a, b, c, multiplications, &plan));
  INTRAWARP_RETURN_IF_ERROR(Pack(ctx, c.entries, &plan));
  return plan;
}

absl::Status ExecuteReusePlan(const ExecContext& ctx, const ReusePlan& plan, int64_t entries, const ConstCsrView& a,
                              const ConstCsrView& b, Semiring semiring, double alpha, void* values) {
  if (a.type == ValueType::kFloat64) {
    return ExecuteAs<double>(ctx, plan, entries, a, b, semiring, alpha, values);
  }
  return ExecuteAs<float>(ctx, plan, entries, a, b, semiring, alpha, values);
}

}  // namespace intrawarp::cuda::spgemm
