// SPDX-License-Identifier: Apache-2.0
#include <climits>
#include <type_traits>

#include "engine/device/warp.cuh"
#include "engine/sparse/cuda/adder.cuh"
#include "engine/sparse/cuda/products.cuh"
#include "engine/sparse/cuda/semirings.cuh"
#include "engine/sparse/cuda/short_rows.h"
#include "engine/sparse/cuda/short_values.cuh"
#include "engine/sparse/cuda/table.cuh"

namespace intrawarp::cuda::spgemm {
namespace {

// The kernels of short rows share these arguments. `columns` and `values` are null for an output that is not made.
template <typename T>
struct ShortArguments {
  ConstCsrView a, b;
  ConstPatternView c;
  RowBinsView bins;
  unsigned tasks;
  T alpha;
  int32_t* columns;
  T* values;
};

// Whether values are made; int32_t stands for none.
template <typename T>
constexpr bool kWithValues = !std::is_same_v<T, int32_t>;

// Sorts `count` columns by a bitonic network. `threads` threads, of which this is number `thread`, call it; barrier()
// makes them wait for each other. The memory has room for a power of two of columns.
template <typename Barrier>
__device__ void SortColumns(int32_t* columns, int count, int thread, int threads, const Barrier& barrier) {
  const int places = count <= 1 ? 1 : 1 << (32 - __clz(count - 1));
  for (int i = count + thread; i < places; i += threads) columns[i] = INT_MAX;
  barrier();
  for (int width = 2; width <= places; width *= 2) {
    for (int stride = width / 2; stride > 0; stride /= 2) {
      for (int pair = thread; pair < places / 2; pair += threads) {
        const int low = 2 * pair - (pair & (stride - 1)), high = low + stride;
        const int32_t x = columns[low], y = columns[high];
        if ((x > y) != ((low & width) == 0)) continue;
        columns[low] = y;
        columns[high] = x;
      }
      barrier();
    }
  }
}

// The shared memory of a warp for a row of kShortFew.
template <typename T>
struct alignas(16) FewScratch {
  int32_t columns[kFewMultiplications];
  Table<2 * kFewMultiplications> table;
  T sums[kFewMultiplications];
};

// Makes the rows of kShortFew, each by one step over its products.
template <typename T, typename Ring>
__global__ void __launch_bounds__(kThreads) FewKernel(ShortArguments<T> m) {
  const OverlapNext overlap;
  constexpr int kTogether = kFewMultiplications / 32;
  __shared__ FewScratch<T> scratches[kWarps];
  FewScratch<T>& scratch = scratches[threadIdx.x / 32];
  const int lane = threadIdx.x % 32;
  const unsigned below = (1u << lane) - 1;
  for (unsigned t = blockIdx.x * kWarps + threadIdx.x / 32; t < m.tasks; t += gridDim.x * kWarps) {
    const int32_t row = *m.bins.RowAt(kShortFew, t);
    const int64_t i = m.a.row_offsets[row] + lane, end = m.a.row_offsets[row + 1], begin = m.c.row_offsets[row];
    const RowOfB mine(m.a, m.b, i, end);
    [[maybe_unused]] T factor = {};
    if constexpr (kWithValues<T>) {
      if (i < end) factor = static_cast<const T*>(m.a.values)[i];
    }
    scratch.table.Clear(lane, 32);
    __syncwarp();
    ForProducts<kTogether>(mine.from, mine.to, [&](const Products<kTogether>& p) {
      int32_t column[kTogether];
      [[maybe_unused]] T b_value[kTogether] = {};
#pragma unroll
      for (int h = 0; h < kTogether; ++h) {
        column[h] = p.at[h] >= 0 ? m.b.column_indices[p.at[h]] : -1;
        if constexpr (kWithValues<T>) {
          if (p.at[h] >= 0) b_value[h] = static_cast<const T*>(m.b.values)[p.at[h]];
        }
      }
      bool is_new[kTogether] = {};
      int count = 0;
#pragma unroll
      for (int h = 0; h < kTogether; ++h) {
        is_new[h] = column[h] >= 0 && scratch.table.Add(column[h]);
        const unsigned come = __ballot_sync(kAllLanes, is_new[h]);
        if (is_new[h]) scratch.columns[count + __popc(come & below)] = column[h];
        count += __popc(come);
      }
      if (lane < (-count & 3)) scratch.columns[count + lane] = INT_MAX;
      __syncwarp();
      int rank[kTogether] = {};
      for (int c = 0; c < count; c += 4) {
        const int4 four = *reinterpret_cast<const int4*>(scratch.columns + c);
#pragma unroll
        for (int h = 0; h < kTogether; ++h) {
          rank[h] += (four.x < column[h]) + (four.y < column[h]) + (four.z < column[h]) + (four.w < column[h]);
        }
      }
#pragma unroll
      for (int h = 0; h < kTogether; ++h) {
        if (!is_new[h]) continue;
        scratch.sums[rank[h]] = Ring::Identity();
        if (m.columns != nullptr) m.columns[begin + rank[h]] = column[h];
      }
      __syncwarp();
      if constexpr (kWithValues<T>) {
#pragma unroll
        for (int h = 0; h < kTogether; ++h) {
          const T a_value = __shfl_sync(kAllLanes, factor, p.entry[h]);
          const unsigned same = p.mixed[h] ? __match_any_sync(kAllLanes, column[h] >= 0 ? rank[h] : -1 - lane) : 0;
          const int turn = __popc(same & below);
          for (int now = 0; __any_sync(kAllLanes, turn >= now && column[h] >= 0); ++now) {
            if (turn == now && column[h] >= 0) {
              T& sum = scratch.sums[rank[h]];
              sum = Ring::Add(sum, a_value, b_value[h]);
            }
            __syncwarp();
          }
        }
        for (int r = lane; r < count; r += 32) {
          m.values[begin + r] = m.alpha == T{1} ? scratch.sums[r] : m.alpha * scratch.sums[r];
        }
        __syncwarp();
      }
    });
  }
}

// Puts the columns of every `step`-th entry of A in [begin, end) into a table, and into `list` in the order in which
// they come; reserve(number) gives the place of the next ones. A warp calls it.
template <typename Columns, typename Reserve>
__device__ void CollectColumns(const ConstPatternView& a, const ConstPatternView& b, int64_t begin, int64_t end,
                               int step, Columns& table, int32_t* list, const Reserve& reserve) {
  constexpr int kTogether = 2;
  const int lane = threadIdx.x % 32;
  for (int64_t at = begin; at < end; at += 32 * step) {
    const RowOfB row(a, b, at + lane * step, end);
    ForProducts<kTogether>(row.from, row.to, [&](const Products<kTogether>& p) {
      int32_t column[kTogether];
#pragma unroll
      for (int h = 0; h < kTogether; ++h) column[h] = p.at[h] >= 0 ? b.column_indices[p.at[h]] : -1;
#pragma unroll
      for (int h = 0; h < kTogether; ++h) {
        const bool is_new = column[h] >= 0 && table.Add(column[h]);
        const unsigned come = __ballot_sync(kAllLanes, is_new);
        const int place = reserve(__popc(come));
        if (is_new) list[place + __popc(come & ((1u << lane) - 1))] = column[h];
      }
    });
  }
}

// The shared memory of a warp for a row of kShortWarp.
template <typename T>
struct WarpScratch {
  T sums[kWarpMultiplications];
  Table<2 * kWarpMultiplications> table;
  int32_t columns[kWarpMultiplications];
};

// Makes the rows of kShortWarp.
template <typename T, typename Ring>
__global__ void __launch_bounds__(kThreads) WarpKernel(ShortArguments<T> m) {
  const OverlapNext overlap;
  __shared__ WarpScratch<T> scratches[kWarps];
  WarpScratch<T>& scratch = scratches[threadIdx.x / 32];
  const int lane = threadIdx.x % 32;
  for (unsigned t = blockIdx.x * kWarps + threadIdx.x / 32; t < m.tasks; t += gridDim.x * kWarps) {
    const int32_t row = *m.bins.RowAt(kShortWarp, t);
    const int64_t from = m.a.row_offsets[row], to = m.a.row_offsets[row + 1], begin = m.c.row_offsets[row];
    const int count = static_cast<int>(m.c.row_offsets[row + 1] - begin);
    scratch.table.Clear(lane, 32);
    __syncwarp();
    if (m.columns != nullptr) {
      int collected = 0;
      CollectColumns(m.a, m.b, from, to, 1, scratch.table, scratch.columns, [&](int more) {
        collected += more;
        return collected - more;
      });
      SortColumns(scratch.columns, count, lane, 32, [] { __syncwarp(); });
    }
    for (int r = lane; r < count; r += 32) {
      if (m.columns == nullptr) {
        scratch.table.Insert(m.c.column_indices[begin + r], r);
      } else {
        m.columns[begin + r] = scratch.columns[r];
        scratch.table.SetRank(scratch.columns[r], r);
      }
      scratch.sums[r] = Ring::Identity();
    }
    __syncwarp();
    if constexpr (kWithValues<T>) {
      AddProducts<T, Ring, 1, true>(
          m.a, m.b, from, to, 1, 1, true, 0, 0, [&scratch](int32_t column) { return scratch.table.Find(column); },
          count, scratch.sums);
      WriteSums(scratch.sums, count, m.alpha, m.values + begin);
    }
  }
}

constexpr int kBlockWarps = 4;
constexpr int kBlockEntries = kShortMultiplications;  // that a block has room for

// The shared memory of a block for a row of kShortBlock.
template <typename T>
struct BlockScratch {
  T sums[kBlockWarps * kBlockEntries];
  Table<2 * kBlockEntries> table;
  int32_t columns[kBlockEntries];
  int collected;
};

// Makes the rows of kShortBlock. The warps take turns with the entries of A, each with sums of its own, which are
// joined in order.
template <typename T, typename Ring>
__global__ void __launch_bounds__(kBlockWarps * 32) BlockKernel(ShortArguments<T> m) {
  const OverlapNext overlap;
  extern __shared__ double block_memory[];
  auto& scratch = *reinterpret_cast<BlockScratch<T>*>(block_memory);
  constexpr int kBlock = kBlockWarps * 32;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (unsigned t = blockIdx.x; t < m.tasks; t += gridDim.x) {
    const int32_t row = *m.bins.RowAt(kShortBlock, t);
    const int64_t from = m.a.row_offsets[row], to = m.a.row_offsets[row + 1], begin = m.c.row_offsets[row];
    const int count = static_cast<int>(m.c.row_offsets[row + 1] - begin);
    scratch.table.Clear(threadIdx.x, kBlock);
    if (threadIdx.x == 0) scratch.collected = 0;
    __syncthreads();
    if (m.columns != nullptr) {
      CollectColumns(m.a, m.b, from + warp, to, kBlockWarps, scratch.table, scratch.columns, [&](int more) {
        const int place = lane == 0 && more > 0 ? atomicAdd(&scratch.collected, more) : 0;
        return __shfl_sync(kAllLanes, place, 0);
      });
      SortColumns(scratch.columns, count, threadIdx.x, kBlock, [] { __syncthreads(); });
    }
    for (int r = threadIdx.x; r < count; r += kBlock) {
      if (m.columns == nullptr) {
        scratch.table.Insert(m.c.column_indices[begin + r], r);
      } else {
        m.columns[begin + r] = scratch.columns[r];
        scratch.table.SetRank(scratch.columns[r], r);
      }
    }
    if constexpr (kWithValues<T>) {
      for (int r = threadIdx.x; r < kBlockWarps * count; r += kBlock) scratch.sums[r] = Ring::Identity();
      __syncthreads();
      AddProducts<T, Ring, 1, true>(
          m.a, m.b, from + warp, to, kBlockWarps, 1, true, 0, 0,
          [&scratch](int32_t column) { return scratch.table.Find(column); }, count, scratch.sums + warp * count);
      __syncthreads();
      for (int r = threadIdx.x; r < count; r += kBlock) {
        T sum = scratch.sums[r];
        for (int w = 1; w < kBlockWarps; ++w) sum = Ring::Join(sum, scratch.sums[w * count + r]);
        m.values[begin + r] = m.alpha == T{1} ? sum : m.alpha * sum;
      }
    }
    __syncthreads();
  }
}

}  // namespace

template <typename T, typename Ring>
absl::Status LaunchShortRows(Launcher& launcher, const RowBins& bins, const ConstCsrView& a, const ConstCsrView& b,
                             const ConstPatternView& c, MergeOutput make, T alpha, T* values) {
  int32_t* const columns = make == MergeOutput::kValues ? nullptr : const_cast<int32_t*>(c.column_indices);
  const auto launch = [&](auto* kernel, int of_class, int of_block, int warps, int shared_bytes) {
    const unsigned rows = bins.lengths[of_class];
    const ShortArguments<T> m = {a, b, c, bins.view(), rows, alpha, columns, values};
    return launcher.LaunchUneven(kernel, rows, of_block, warps * 32, shared_bytes, m);
  };
  INTRAWARP_RETURN_IF_ERROR(
      launch(BlockKernel<T, Ring>, kShortBlock, 1, kBlockWarps, static_cast<int>(sizeof(BlockScratch<T>))));
  INTRAWARP_RETURN_IF_ERROR(launch(WarpKernel<T, Ring>, kShortWarp, kWarps, kWarps, 0));
  return launch(FewKernel<T, Ring>, kShortFew, kWarps, kWarps, 0);
}

#define INTRAWARP_INSTANTIATE(T, Ring)                                                              \
  template absl::Status LaunchShortRows<T, Ring<T>>(Launcher&, const RowBins&, const ConstCsrView&, \
                                                    const ConstCsrView&, const ConstPatternView&, MergeOutput, T, T*)
INTRAWARP_INSTANTIATE(float, PlusTimes);
INTRAWARP_INSTANTIATE(float, OrAnd);
INTRAWARP_INSTANTIATE(float, MinPlus);
INTRAWARP_INSTANTIATE(double, PlusTimes);
INTRAWARP_INSTANTIATE(double, OrAnd);
INTRAWARP_INSTANTIATE(double, MinPlus);
#undef INTRAWARP_INSTANTIATE

absl::Status FillShortRows(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                           const RowBins& bins, const ConstPatternView& c) {
  Launcher launcher(ctx);
  const ConstCsrView left = {a, ValueType::kFloat32, nullptr}, right = {b, ValueType::kFloat32, nullptr};
  return LaunchShortRows<int32_t, PlusTimes<int32_t>>(launcher, bins, left, right, c, MergeOutput::kColumns, 1,
                                                      nullptr);
}

}  // namespace intrawarp::cuda::spgemm
