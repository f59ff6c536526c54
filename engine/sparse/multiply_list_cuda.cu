// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cub/block/block_radix_sort.cuh>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/sparse/multiply_device.cuh"
#include "engine/sparse/multiply_list.h"
#include "engine/sparse/multiply_merge.cuh"

namespace intrawarp::cuda {
namespace {

// Products that a block multiplies before it sums them, and of one list within a piece from which a warp sums it.
constexpr int kPiece = 2048;
constexpr unsigned kLong = 64;

// products[i] = the products of entry i of A; of one behind the last, 0.
__global__ void CountKernel(ConstPatternView a, ConstPatternView b, unsigned* products) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i > a.entries) return;
  const Meeting meeting(a, b, i, a.entries);
  products[i] = static_cast<unsigned>(meeting.to - meeting.from);
}

// Of each product its entry of C and its places in A and B. A warp takes 32 entries of A; firsts[i]: the number of the
// first product of entry i.
__global__ void PlaceKernel(ConstPatternView a, ConstPatternView b, ConstPatternView c, const unsigned* firsts,
                            unsigned* places, uint2* pairs) {
  const int64_t base = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32 * 32, i = base + threadIdx.x % 32;
  if (base >= a.entries) return;
  const Meeting mine(a, b, i, a.entries);
  const int64_t shift = i < a.entries ? firsts[i] - mine.from : 0;
  int64_t c_begin = 0, c_end = 0;
  if (i < a.entries) {
    int64_t row = 0;
    for (int64_t end = a.rows; row < end;) {
      const int64_t middle = row + (end - row) / 2;
      if (a.row_offsets[middle + 1] <= i) {
        row = middle + 1;
      } else {
        end = middle;
      }
    }
    c_begin = c.row_offsets[row];
    c_end = c.row_offsets[row + 1];
  }
  ForProducts<2>(mine.from, mine.to, [&](const Products<2>& p) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int64_t begin = __shfl_sync(kAll, c_begin, p.entry[h]), end = __shfl_sync(kAll, c_end, p.entry[h]);
      const int64_t number = p.at[h] + __shfl_sync(kAll, shift, p.entry[h]);
      if (p.at[h] < 0) continue;
      const int32_t column = b.column_indices[p.at[h]];
      places[number] = static_cast<unsigned>(LowerBound(c.column_indices, begin, end, column));
      pairs[number] = {static_cast<unsigned>(base + p.entry[h]), static_cast<unsigned>(p.at[h])};
    }
  });
}

// Where the list of each entry begins, from the sorted entries of all products; starts[entries] = products.
__global__ void StartKernel(const unsigned* places, unsigned products, unsigned entries, unsigned* starts) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= products) return;
  if (i == 0 || places[i] != places[i - 1]) starts[places[i]] = static_cast<unsigned>(i);
  if (i == 0) starts[entries] = products;
}

// How entries are shared out: a block of kThreads makes kEach entries of each of its threads, or one of each kLanes.
template <int kEachOf, int kLanesOf>
struct Shape {
  static constexpr int kEach = kEachOf, kLanes = kLanesOf;
  static constexpr int kEntries = kThreads * kEach / kLanes;
};

// body(Shape) with as many entries a block as have about a piece of products.
template <typename Body>
auto WithShape(int64_t products, int64_t entries, const Body& body) {
  if (products > 24 * entries) return body(Shape<1, 8>());
  if (products > 6 * entries) return body(Shape<1, 4>());
  if (products > 3 * entries) return body(Shape<2, 1>());
  return body(Shape<4, 1>());
}
constexpr int kFewestEntries = Shape<1, 8>::kEntries;

// A product in its piece: its place in B, its place in A from the block's base on, and which of the piece it is.
__device__ uint2 Packed(unsigned b, unsigned a, unsigned slot) { return {b, a << 16 | slot}; }
static_assert(kPiece <= 1 << 16);

// The products of each piece in the order in which rows of B are read, so that neighbouring threads read neighbours.
// bases: of each block. *too_wide = 1, and nothing more, when the places in A of a block are too far apart.
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

// The products [low, high) of a piece, by kLanes neighbouring threads, and those of a long list by a warp; all of the
// entry's threads get the sum. All threads of a warp call it.
template <typename T, typename Ring, int kLanes>
__device__ T SumList(const T* products, unsigned low, unsigned high) {
  const int lane = threadIdx.x % 32;
  T sum = Ring::Identity();
  const bool is_long = high > low + kLong * kLanes;
  if (!is_long) {
    for (unsigned p = low + lane % kLanes; p < high; p += kLanes) sum = Ring::Join(sum, products[p]);
  }
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    sum = Ring::Join(sum, __shfl_xor_sync(kAll, sum, offset));
  }
  unsigned left = __ballot_sync(kAll, is_long);
  while (left != 0) {
    const int owner = __ffs(left) - 1;
    left &= ~(((kLanes == 32 ? 0u : 1u << kLanes) - 1) << owner);
    const unsigned from = __shfl_sync(kAll, low, owner), to = __shfl_sync(kAll, high, owner);
    T part = Ring::Identity();
    for (unsigned p = from + lane; p < to; p += 32) part = Ring::Join(part, products[p]);
    for (int offset = 16; offset > 0; offset /= 2) part = Ring::Join(part, __shfl_xor_sync(kAll, part, offset));
    if (lane / kLanes == owner / kLanes) sum = part;
  }
  return sum;
}

// Neighbouring threads make neighbouring entries.
template <typename T, typename Ring, typename Shape>
__global__ void __launch_bounds__(kThreads)
    ListKernel(const uint2* __restrict__ pairs, const unsigned* __restrict__ starts, const unsigned* __restrict__ bases,
               int64_t entries, const T* __restrict__ a, const T* __restrict__ b, T alpha, T* __restrict__ values) {
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
      sums[k] = Ring::Join(sums[k], SumList<T, Ring, kLanes>(products, from, to));
    }
    __syncthreads();
  }
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int64_t e = first + (k * kThreads + threadIdx.x) / kLanes;
    if (threadIdx.x % kLanes == 0 && e < entries) values[e] = alpha == T{1} ? sums[k] : alpha * sums[k];
  }
}

// What ListProducts holds until it returns.
struct Scratch {
  Buffer firsts, places, other_places, other_pairs, temporary;
};

int BitsOf(int64_t entries) {
  return std::max(1, static_cast<int>(std::bit_width(static_cast<uint64_t>(entries - 1))));
}

unsigned BlocksOf(int64_t entries, int of_block) { return static_cast<unsigned>((entries + of_block - 1) / of_block); }

template <typename T, typename Ring>
absl::Status ExecuteOver(const ExecContext& ctx, const ProductList& list, int64_t entries, const ConstCsrView& a,
                         const ConstCsrView& b, double alpha, void* values) {
  return WithShape(list.products(), entries, [&](auto shape) -> absl::Status {
    using Shape = decltype(shape);
    ListKernel<T, Ring, Shape><<<BlocksOf(entries, Shape::kEntries), kThreads, 0, CudaStream(ctx)>>>(
        list.pairs.as<uint2>(), list.starts.as<unsigned>(), list.bases.as<unsigned>(), entries,
        static_cast<const T*>(a.values), static_cast<const T*>(b.values), static_cast<T>(alpha),
        static_cast<T*>(values));
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    return absl::OkStatus();
  });
}

template <typename T>
absl::Status ExecuteAs(const ExecContext& ctx, const ProductList& list, int64_t entries, const ConstCsrView& a,
                       const ConstCsrView& b, Semiring semiring, double alpha, void* values) {
  switch (semiring) {
    case Semiring::kPlusTimes:
      return ExecuteOver<T, PlusTimes<T>>(ctx, list, entries, a, b, alpha, values);
    case Semiring::kOrAnd:
      return ExecuteOver<T, OrAnd<T>>(ctx, list, entries, a, b, alpha, values);
    case Semiring::kMinPlus:
      return ExecuteOver<T, MinPlus<T>>(ctx, list, entries, a, b, alpha, values);
  }
  return absl::UnimplementedError("semiring: not on CUDA yet");
}

// From pairs of places to what ListKernel reads; drops the list where that cannot be.
absl::Status Pack(const ExecContext& ctx, int64_t entries, ProductList* list) {
  Device& device = ctx.device();
  INTRAWARP_ASSIGN_OR_RETURN(const Buffer too_wide, device.Allocate(sizeof(int), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(device.Fill(too_wide.as<void>(), 0, sizeof(int), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(WithShape(list->products(), entries, [&](auto shape) -> absl::Status {
    using Shape = decltype(shape);
    const unsigned blocks = BlocksOf(entries, Shape::kEntries);
    INTRAWARP_ASSIGN_OR_RETURN(list->bases, device.Allocate(blocks * sizeof(unsigned), ctx.stream()));
    PackKernel<Shape><<<blocks, kThreads, 0, CudaStream(ctx)>>>(
        list->pairs.as<uint2>(), list->starts.as<unsigned>(), entries, list->bases.as<unsigned>(), too_wide.as<int>());
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    return absl::OkStatus();
  }));
  int on_host = 0;
  INTRAWARP_RETURN_IF_ERROR(device.Copy(&on_host, too_wide.as<void>(), sizeof(int), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(device.Synchronize(ctx.stream()));
  if (on_host != 0) *list = ProductList();
  return absl::OkStatus();
}

}  // namespace

int64_t MostListBytes(int64_t products, int64_t a_entries, int64_t entries) {
  // Pairs and places twice, for the sort; what the sort and the scan take beside that is a few MB.
  constexpr int64_t kTemporary = int64_t{16} << 20;
  return products * 2 * static_cast<int64_t>(sizeof(uint2) + sizeof(unsigned)) +
         (a_entries + entries + entries / kFewestEntries + 3) * static_cast<int64_t>(sizeof(unsigned)) + kTemporary;
}

absl::Status ListProducts(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                          const ConstPatternView& c, int64_t products, ProductList* list) {
  if (products > kMostListed) return absl::InvalidArgumentError(absl::StrCat("products: ", products, " are too many"));
  Device& device = ctx.device();
  const cudaStream_t stream = CudaStream(ctx);
  const auto allocate = [&](int64_t count, size_t size) { return device.Allocate(count * size, ctx.stream()); };
  Scratch s;
  INTRAWARP_ASSIGN_OR_RETURN(list->starts, allocate(c.entries + 1, sizeof(unsigned)));
  INTRAWARP_ASSIGN_OR_RETURN(s.firsts, allocate(a.entries + 1, sizeof(unsigned)));
  INTRAWARP_ASSIGN_OR_RETURN(s.places, allocate(products, sizeof(unsigned)));
  INTRAWARP_ASSIGN_OR_RETURN(s.other_places, allocate(products, sizeof(unsigned)));
  INTRAWARP_ASSIGN_OR_RETURN(list->pairs, allocate(products, sizeof(uint2)));
  INTRAWARP_ASSIGN_OR_RETURN(s.other_pairs, allocate(products, sizeof(uint2)));

  unsigned* const firsts = s.firsts.as<unsigned>();
  cub::DoubleBuffer<unsigned> places(s.places.as<unsigned>(), s.other_places.as<unsigned>());
  cub::DoubleBuffer<unsigned long long> pairs(list->pairs.as<unsigned long long>(),
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
      places.Current(), static_cast<unsigned>(products), static_cast<unsigned>(c.entries), list->starts.as<unsigned>());
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  if (pairs.Current() == s.other_pairs.as<unsigned long long>()) std::swap(list->pairs, s.other_pairs);
  return Pack(ctx, c.entries, list);
}

absl::Status ExecuteList(const ExecContext& ctx, const ProductList& list, int64_t entries, const ConstCsrView& a,
                         const ConstCsrView& b, Semiring semiring, double alpha, void* values) {
  if (a.type == ValueType::kFloat64) {
    return ExecuteAs<double>(ctx, list, entries, a, b, semiring, alpha, values);
  }
  return ExecuteAs<float>(ctx, list, entries, a, b, semiring, alpha, values);
}

}  // namespace intrawarp::cuda
