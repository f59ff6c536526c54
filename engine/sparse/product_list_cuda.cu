// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/sparse/multiply_device.cuh"
#include "engine/sparse/multiply_merge.cuh"
#include "engine/sparse/product_list.h"

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

// The products [low, high) of a piece, one after another; those of a long list by all lanes. All lanes call it.
template <typename T, typename Ring>
__device__ T SumList(const T* products, unsigned low, unsigned high) {
  const int lane = threadIdx.x % 32;
  T sum = Ring::Identity();
  const bool is_long = high > low + kLong;
  if (!is_long) {
    for (unsigned p = low; p < high; ++p) sum = Ring::Join(sum, products[p]);
  }
  for (unsigned left = __ballot_sync(kAll, is_long); left != 0; left &= left - 1) {
    const int owner = __ffs(left) - 1;
    const unsigned from = __shfl_sync(kAll, low, owner), to = __shfl_sync(kAll, high, owner);
    T part = Ring::Identity();
    for (unsigned p = from + lane; p < to; p += 32) part = Ring::Join(part, products[p]);
    for (int offset = 16; offset > 0; offset /= 2) part = Ring::Join(part, __shfl_xor_sync(kAll, part, offset));
    if (lane == owner) sum = part;
  }
  return sum;
}

// A block makes kEach values a thread, those of neighbouring entries by neighbouring threads.
template <typename T, typename Ring, int kEach>
__global__ void __launch_bounds__(kThreads)
    ListKernel(const uint2* __restrict__ pairs, const unsigned* __restrict__ starts, int64_t entries,
               const T* __restrict__ a, const T* __restrict__ b, T alpha, T* __restrict__ values) {
  __shared__ T products[kPiece];
  const int64_t first = int64_t{blockIdx.x} * (kThreads * kEach);
  unsigned low[kEach], high[kEach];
  T sums[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int64_t e = first + k * kThreads + threadIdx.x;
    low[k] = starts[min(e, entries)];
    high[k] = starts[min(e + 1, entries)];
    sums[k] = Ring::Identity();
  }
  const unsigned end = starts[min(first + kThreads * kEach, entries)];
  for (unsigned begin = starts[first]; begin < end; begin += kPiece) {
    const unsigned count = min(end - begin, static_cast<unsigned>(kPiece));
    uint2 at[kPiece / kThreads];
#pragma unroll
    for (int h = 0; h < kPiece / kThreads; ++h) {
      const unsigned p = h * kThreads + threadIdx.x;
      if (p < count) at[h] = __ldcs(pairs + begin + p);
    }
#pragma unroll
    for (int h = 0; h < kPiece / kThreads; ++h) {
      const unsigned p = h * kThreads + threadIdx.x;
      if (p < count) products[p] = Ring::Add(Ring::Identity(), a[at[h].x], b[at[h].y]);
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const unsigned from = max(low[k], begin) - begin, to = min(max(high[k], begin) - begin, count);
      sums[k] = Ring::Join(sums[k], SumList<T, Ring>(products, from, to));
    }
    __syncthreads();
  }
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int64_t e = first + k * kThreads + threadIdx.x;
    if (e < entries) values[e] = alpha == T{1} ? sums[k] : alpha * sums[k];
  }
}

// What ListProducts holds until it returns.
struct Scratch {
  Buffer firsts, places, other_places, other_pairs, temporary;
};

int BitsOf(int64_t entries) {
  return std::max(1, static_cast<int>(std::bit_width(static_cast<uint64_t>(entries - 1))));
}

template <typename T, typename Ring, int kEach>
absl::Status LaunchList(const ExecContext& ctx, const Buffer& pairs, const Buffer& starts, int64_t entries,
                        const ConstCsrView& a, const ConstCsrView& b, double alpha, void* values) {
  const int64_t blocks = (entries + kThreads * kEach - 1) / (kThreads * kEach);
  ListKernel<T, Ring, kEach><<<static_cast<unsigned>(blocks), kThreads, 0, CudaStream(ctx)>>>(
      pairs.as<uint2>(), starts.as<unsigned>(), entries, static_cast<const T*>(a.values),
      static_cast<const T*>(b.values), static_cast<T>(alpha), static_cast<T*>(values));
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

// As many entries a block as have about a piece's products.
template <typename T, typename Ring>
absl::Status ExecuteOver(const ExecContext& ctx, const Buffer& pairs, const Buffer& starts, int64_t entries,
                         const ConstCsrView& a, const ConstCsrView& b, double alpha, void* values) {
  const int64_t products = static_cast<int64_t>(pairs.bytes() / sizeof(uint2));
  if (products > 6 * entries) return LaunchList<T, Ring, 1>(ctx, pairs, starts, entries, a, b, alpha, values);
  if (products > 3 * entries) return LaunchList<T, Ring, 2>(ctx, pairs, starts, entries, a, b, alpha, values);
  return LaunchList<T, Ring, 4>(ctx, pairs, starts, entries, a, b, alpha, values);
}

template <typename T>
absl::Status ExecuteAs(const ExecContext& ctx, const Buffer& pairs, const Buffer& starts, int64_t entries,
                       const ConstCsrView& a, const ConstCsrView& b, Semiring semiring, double alpha, void* values) {
  switch (semiring) {
    case Semiring::kPlusTimes:
      return ExecuteOver<T, PlusTimes<T>>(ctx, pairs, starts, entries, a, b, alpha, values);
    case Semiring::kOrAnd:
      return ExecuteOver<T, OrAnd<T>>(ctx, pairs, starts, entries, a, b, alpha, values);
    case Semiring::kMinPlus:
      return ExecuteOver<T, MinPlus<T>>(ctx, pairs, starts, entries, a, b, alpha, values);
  }
  return absl::UnimplementedError("semiring: not on CUDA yet");
}

}  // namespace

int64_t MostListBytes(int64_t products, int64_t a_entries, int64_t entries) {
  // Pairs and places twice, for the sort; what the sort and the scan take beside that is a few MB.
  constexpr int64_t kTemporary = int64_t{16} << 20;
  return products * 2 * static_cast<int64_t>(sizeof(uint2) + sizeof(unsigned)) +
         (a_entries + entries + 2) * static_cast<int64_t>(sizeof(unsigned)) + kTemporary;
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
  return absl::OkStatus();
}

absl::Status ExecuteList(const ExecContext& ctx, const Buffer& pairs, const Buffer& starts, int64_t entries,
                         const ConstCsrView& a, const ConstCsrView& b, Semiring semiring, double alpha, void* values) {
  if (a.type == ValueType::kFloat64) {
    return ExecuteAs<double>(ctx, pairs, starts, entries, a, b, semiring, alpha, values);
  }
  return ExecuteAs<float>(ctx, pairs, starts, entries, a, b, semiring, alpha, values);
}

}  // namespace intrawarp::cuda
