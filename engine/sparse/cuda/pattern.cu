// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <climits>

#include "engine/base/status_macros.h"
#include "engine/device/reduce.cuh"
#include "engine/sparse/cuda/launcher.cuh"
#include "engine/sparse/cuda/merge.cuh"
#include "engine/sparse/cuda/pattern.h"
#include "engine/sparse/cuda/products.cuh"
#include "engine/sparse/cuda/search.cuh"
#include "engine/sparse/cuda/semirings.cuh"

namespace intrawarp::cuda::spgemm {
namespace {

// Writes the columns of a word of each lane in the order of the lanes, `rows` times, `stride` apart. Returns the number
// of columns. Lane l's word begins at column first + 32 l.
__device__ int EmitWords(uint32_t word, int32_t first, int rows, int64_t stride, int32_t* out) {
  const int lane = threadIdx.x % 32, count = __popc(word), ends = InclusiveScan(count);
  const int total = __shfl_sync(kAllLanes, ends, 31);
  unsigned in_use = __ballot_sync(kAllLanes, word != 0);
  if (total >= 4 * __popc(in_use)) {
    for (; in_use != 0; in_use &= in_use - 1) {
      const int s = __ffs(in_use) - 1;
      const uint32_t bits = __shfl_sync(kAllLanes, word, s);
      const int before = __shfl_sync(kAllLanes, ends - count, s);
      if ((bits >> lane & 1) == 0) continue;
      int32_t* to = out + before + __popc(bits & ((1u << lane) - 1));
      for (int r = 0; r < rows; ++r) to[r * stride] = first + s * 32 + lane;
    }
    return total;
  }
  for (int32_t* to = out + ends - count; word != 0; word &= word - 1, ++to) {
    for (int r = 0; r < rows; ++r) to[r * stride] = first + lane * 32 + __ffs(word) - 1;
  }
  return total;
}

// Calls set(column) for each entry [from, to) of B of each lane.
template <typename Set>
__device__ __forceinline__ void MarkProducts(const int32_t* b_columns, int64_t from, int64_t to, const Set& set) {
  constexpr int kTogether = 4;
  ForProducts<kTogether>(from, to, [&](const Products<kTogether>& p) {
    int column[kTogether];
#pragma unroll
    for (int h = 0; h < kTogether; ++h) column[h] = p.at[h] >= 0 ? b_columns[p.at[h]] : -1;
#pragma unroll
    for (int h = 0; h < kTogether; ++h) {
      if (column[h] >= 0) set(column[h]);
    }
  });
}

// A bitmap of kWords_ words, in shared memory. A large bitmap has a summary: a bit for each word that is not 0. The
// words of each group of 32 are then stored in an order that lets 32 threads walk a group each without bank conflicts.
template <int kWords_, bool kSummary_>
struct alignas(16) Bitmap {
  static constexpr int kWords = kWords_;
  static constexpr bool kSummary = kSummary_;
  static constexpr int kGroups = kSummary ? kWords / 32 : 1;
  uint32_t words[kWords];
  uint32_t summary[kGroups];

  static __device__ int Place(int word) { return kSummary ? word ^ (word / 32 & 31) : word; }
  __device__ uint32_t Word(int word) const { return words[Place(word)]; }
  // Sets a bit; true when it was not set before. Reads the word first: most bits are set many times, and threads that
  // write the same word wait for each other.
  __device__ bool Set(int column) {
    uint32_t& word = words[Place(column / 32)];
    const uint32_t bit = 1u << column % 32;
    if (word & bit) return false;
    const uint32_t before = atomicOr(&word, bit);
    if (kSummary && before == 0) atomicOr(&summary[column / 1024], 1u << column / 32 % 32);
    return (before & bit) == 0;
  }
  // Calls use(word, its first column) for the words of a group that are not 0, in order.
  template <typename Use>
  __device__ void ForWords(int group, const Use& use) const {
    for (uint32_t m = summary[group]; m != 0; m &= m - 1) {
      const int word = group * 32 + __ffs(m) - 1;
      use(Word(word), word * 32);
    }
  }
};

constexpr int kStagedColumns = 256;  // of a row that a warp stages in shared memory

// The bitmap of a warp.
template <int kWords>
struct NearBits : Bitmap<kWords, (kWords > kNearWords)> {
  int32_t columns[kStagedColumns];

  __device__ void Clear(int in_use) {
    const int lane = threadIdx.x % 32;
    for (int w = lane * 4; w < in_use; w += 128) *reinterpret_cast<uint4*>(this->words + w) = uint4{};
    if constexpr (NearBits::kSummary) {
      for (int g = lane; g < NearBits::kGroups; g += 32) this->summary[g] = 0;
    }
    __syncwarp();
  }

  // Writes the columns, `first` plus the positions of the bits, to `to`.
  __device__ void Put(int in_use, int first, int32_t* to) {
    const int lane = threadIdx.x % 32;
    if constexpr (NearBits::kSummary) {
      // Each lane walks its share of the words by the summary.
      const int each = (in_use + 31) / 32, begin = lane * each, group = begin / 32;
      const auto of_group = [&](int g) { return g < NearBits::kGroups ? this->summary[g] : 0; };
      const uint32_t s[3] = {of_group(group), of_group(group + 1), of_group(group + 2)};
      const uint32_t ahead[2] = {__funnelshift_r(s[0], s[1], begin % 32), __funnelshift_r(s[1], s[2], begin % 32)};
      static_assert(kWords <= 32 * 64);
      const uint32_t in_share[2] = {each < 32 ? ahead[0] & ((1u << each) - 1) : ahead[0],
                                    each > 32 ? ahead[1] & (kAllLanes >> (64 - each)) : 0};
      const auto for_words = [&](const auto& use) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          for (uint32_t m = in_share[h]; m != 0; m &= m - 1) {
            const int word = begin + h * 32 + __ffs(m) - 1;
            use(this->Word(word), word * 32);
          }
        }
      };
      int mine = 0;
      for_words([&](uint32_t word, int) { mine += __popc(word); });
      int place = InclusiveScan(mine) - mine;
      for_words([&](uint32_t word, int column) {
        for (; word != 0; word &= word - 1) to[place++] = first + column + __ffs(word) - 1;
      });
    } else {
      const int each = (in_use + 31) / 32 | 1;  // odd: lanes meet different banks
      const int begin = min(lane * each, in_use), end = min(begin + each, in_use);
      int mine = 0;
      for (int w = begin; w < end; ++w) mine += __popc(this->words[w]);
      int place = InclusiveScan(mine) - mine;
      for (int w = begin; w < end; ++w) {
        for (uint32_t word = this->words[w]; word != 0; word &= word - 1) {
          to[place++] = first + w * 32 + __ffs(word) - 1;
        }
      }
    }
    __syncwarp();
  }

  // Writes the columns of `rows` rows, of `entries` each.
  __device__ void Write(int in_use, int first, int rows, int64_t entries, int32_t* out) {
    const int lane = threadIdx.x % 32;
    if (entries <= kStagedColumns) {
      Put(in_use, first, columns);
      for (int r = 0; r < rows; ++r) {
        for (int i = lane; i < entries; i += 32) out[r * entries + i] = columns[i];
      }
      return;
    }
    if (NearBits::kSummary && rows == 1 && entries < 2 * in_use) {
      Put(in_use, first, out);
      return;
    }
    for (int w = 0; w < in_use; w += 32) {
      if constexpr (NearBits::kSummary) {
        if (this->summary[w / 32] == 0) continue;
      }
      out += EmitWords(w + lane < in_use ? this->Word(w + lane) : 0, first + w * 32, rows, entries, out);
    }
  }
};

// The arguments that all kernels of the pattern share.
struct PatternArguments {
  ConstPatternView a, b;
  PatternWorkspace w;
  const uint8_t* kinds;
  int64_t* offsets;
  int32_t* indices;
};

// Makes groups of rows whose columns lie within kWords words, a warp a group; the block is number `block` of `blocks`.
template <int kWords, bool kFill>
__device__ void MakeNearRows(const PatternArguments& m, unsigned block, unsigned blocks, const RowGroup* list, int step,
                             unsigned count, void* memory) {
  const auto& [a, b, w, kinds, offsets, indices] = m;
  const int lane = threadIdx.x % 32;
  NearBits<kWords>& bits = static_cast<NearBits<kWords>*>(memory)[threadIdx.x / 32];
  const unsigned warps = blocks * kWarps;
  for (unsigned t = block * kWarps + threadIdx.x / 32; t < count; t += warps) {
    const RowGroup group = list[static_cast<int64_t>(t) * step];
    const int64_t end = a.row_offsets[group.row + 1];
    int64_t i = a.row_offsets[group.row] + lane;
    RowOfB next(a, b, i, end);
    const RowExtent extent = w.extents[group.row];
    const int base = extent.first / 32 * 32, words = (extent.last - base) / 32 + 1;
    bits.Clear(NearBits<kWords>::kSummary ? (words + 31) / 32 * 32 : words);
    int entries = 0;
    for (; i - lane < end; i += 32) {
      const RowOfB now = next;
      next = RowOfB(a, b, i + 32, end);
      MarkProducts(b.column_indices, now.from, now.to, [&](int column) { entries += bits.Set(column - base); });
    }
    __syncwarp();
    if (kFill) {
      bits.Write(words, base, group.rows, offsets[group.row + 1] - offsets[group.row], indices + offsets[group.row]);
    } else {
      entries = WarpSumAll(entries);
      if (lane < group.rows) offsets[group.row + lane] = entries;
    }
    __syncwarp();
  }
}

// A block walks rows of B of kLongRow entries and more together, at most kMostLongRows of them.
constexpr int kLongRow = 1024, kMostLongRows = 64;

// The bitmap of a block of kBlock threads.
template <int kWords, int kBlock>
struct BlockBits : Bitmap<kWords, (kWords >= 32 * kBlock)> {
  int sums[kBlock / 32];
  unsigned task;
  int long_rows;  // of B
  int64_t long_from[kMostLongRows], long_to[kMostLongRows];
  static constexpr int kStaged = BlockBits::kSummary ? 8192 : 1;  // columns of a window
  int32_t staged[kStaged];

  // Words that a warp walks together.
  static constexpr int kWarpWords = kWords / (kBlock / 32);
  static_assert(kWarpWords % 32 == 0);

  __device__ void ClearAll() {
    for (int w = threadIdx.x; w < kWords; w += kBlock) this->words[w] = 0;
    for (int g = threadIdx.x; g < BlockBits::kGroups; g += kBlock) this->summary[g] = 0;
  }

  // Sets the bits of the columns in [first, last] of a row of C; all columns of the row if `whole`. Returns the number
  // of bits that this thread was the first to set.
  __device__ int Mark(const ConstPatternView& a, const ConstPatternView& b, int32_t row, int64_t first, int64_t last,
                      bool whole) {
    constexpr int kBlockWarps = kBlock / 32;
    const int warp = threadIdx.x / 32;
    const int64_t end = a.row_offsets[row + 1];
    int entries = 0;
    if (threadIdx.x == 0) long_rows = 0;
    __syncthreads();
    // Warps take turns with the entries of A, because long rows of B lie together.
    for (int64_t at = a.row_offsets[row] + warp; at < end; at += 32 * kBlockWarps) {
      RowOfB m(a, b, at + threadIdx.x % 32 * kBlockWarps, end);
      if (!whole) {
        LowerBounds(b.column_indices, static_cast<int32_t>(first), static_cast<int32_t>(last) + 1, &m.from, &m.to);
      }
      if (m.to - m.from >= kLongRow) {
        const int place = atomicAdd(&long_rows, 1);
        if (place < kMostLongRows) {
          long_from[place] = m.from;
          long_to[place] = m.to;
          m.to = m.from;
        }
      }
      MarkProducts(b.column_indices, m.from, m.to,
                   [&](int column) { entries += this->Set(static_cast<int>(column - first)); });
    }
    __syncthreads();
    const int together = min(long_rows, kMostLongRows);
    for (int r = 0; r < together; ++r) {
      const int64_t to = long_to[r];
      for (int64_t j = long_from[r] + threadIdx.x; j < to; j += kBlock) {
        entries += this->Set(static_cast<int>(b.column_indices[j] - first));
      }
    }
    return entries;
  }

  // The sum over the threads before this one; *total is the sum over the block.
  __device__ int Scan(int mine, int* total) { return BlockExclusiveScan<kBlock / 32>(mine, sums, total); }

  // Writes the columns, `first` plus the positions of the bits; returns their number.
  __device__ int Write(int64_t first, int32_t* out) {
    const int lane = threadIdx.x % 32, warp_word = threadIdx.x / 32 * kWarpWords;
    int mine = 0, total = 0;
    if constexpr (BlockBits::kSummary) {
      const int group = threadIdx.x * (BlockBits::kGroups / kBlock);
      for (int g = group; g < group + BlockBits::kGroups / kBlock; ++g)
        this->ForWords(g, [&](uint32_t w, int) { mine += __popc(w); });
    } else {
      for (int w = warp_word + lane; w < warp_word + kWarpWords; w += 32) mine += __popc(this->Word(w));
    }
    const int before = Scan(mine, &total);
    if constexpr (BlockBits::kSummary) {
      if (total <= kStaged) {
        int place = before;
        const int group = threadIdx.x * (BlockBits::kGroups / kBlock);
        for (int g = group; g < group + BlockBits::kGroups / kBlock; ++g) {
          this->ForWords(g, [&](uint32_t word, int column) {
            for (; word != 0; word &= word - 1) {
              staged[place++] = static_cast<int32_t>(first + column) + __ffs(word) - 1;
            }
          });
        }
        __syncthreads();
        for (int i = threadIdx.x; i < total; i += kBlock) out[i] = staged[i];
        return total;
      }
    }
    out += __shfl_sync(kAllLanes, before, 0);
    for (int w = warp_word; w < warp_word + kWarpWords; w += 32) {
      const uint32_t word = this->Word(w + lane);
      if (__any_sync(kAllLanes, word != 0)) out += EmitWords(word, static_cast<int32_t>(first + w * 32), 1, 0, out);
    }
    return total;
  }

  __device__ void Clear() {
    if constexpr (BlockBits::kSummary) {
      const int group = threadIdx.x * (BlockBits::kGroups / kBlock);
      for (int g = group; g < group + BlockBits::kGroups / kBlock; ++g) {
        for (uint32_t m = this->summary[g]; m != 0; m &= m - 1) {
          this->words[this->Place(g * 32 + __ffs(m) - 1)] = 0;
        }
        this->summary[g] = 0;
      }
    } else {
      for (int w = threadIdx.x; w < kWords; w += kBlock) this->words[w] = 0;
    }
  }
};

// Makes a row of C whose row of A has one entry: a copy of a row of B.
template <bool kFill>
__device__ void CopyRow(const ConstPatternView& a, const ConstPatternView& b, int32_t row, int64_t* offsets,
                        int32_t* indices) {
  const int32_t k = a.column_indices[a.row_offsets[row]];
  const int64_t from = b.row_offsets[k], count = b.row_offsets[k + 1] - from;
  if (!kFill) {
    if (threadIdx.x == 0) offsets[row] = count;
    return;
  }
  int32_t* const out = indices + offsets[row];
  for (int64_t j = threadIdx.x; j < count; j += blockDim.x) out[j] = b.column_indices[from + j];
}

// Makes rows of any kind, a block a row, a window of 32 kWords columns at a time; blocks take rows from a queue.
template <int kWords, int kBlock, bool kFill>
__device__ void MakeBlockRows(const PatternArguments& m, const int32_t* list, int step, unsigned tasks, unsigned* next,
                              void* memory) {
  constexpr int64_t kColumns = int64_t{kWords} * 32;
  const auto& [a, b, w, kinds, offsets, indices] = m;
  auto& bits = *static_cast<BlockBits<kWords, kBlock>*>(memory);
  bits.ClearAll();
  while (true) {
    if (threadIdx.x == 0) bits.task = atomicAdd(next, 1u);
    __syncthreads();
    const unsigned task = bits.task;
    __syncthreads();
    if (task >= tasks) return;
    const int32_t row = list[static_cast<int64_t>(task) * step];
    if (a.row_offsets[row + 1] - a.row_offsets[row] == 1) {
      CopyRow<kFill>(a, b, row, offsets, indices);
      continue;
    }
    const RowExtent extent = w.extents[row];
    const int64_t base = extent.first / 32 * 32;
    const bool whole = extent.last - base < kColumns;
    int64_t done = 0;
    for (int64_t first = base; first <= extent.last; first += kColumns) {
      const int mine = bits.Mark(a, b, row, first, min(first + kColumns - 1, int64_t{extent.last}), whole);
      __syncthreads();
      int total = 0;
      if (kFill) {
        total = bits.Write(first, indices + offsets[row] + done);
      } else {
        bits.Scan(mine, &total);
      }
      __syncthreads();
      bits.Clear();
      done += total;
      __syncthreads();
    }
    if (!kFill && threadIdx.x == 0) offsets[row] = done;
  }
}

__device__ ConstCsrView WithoutValues(const ConstPatternView& m) { return {m, ValueType::kFloat32, nullptr}; }

constexpr int kFarBlock = 512;

// Makes far rows.
template <bool kFill>
__global__ void __launch_bounds__(kFarBlock, 2) FarKernel(PatternArguments m) {
  const OverlapNext overlap;
  extern __shared__ uint4 far_memory[];
  const unsigned tasks = m.w.counters->pattern_rows[kFar];
  if (blockIdx.x >= tasks) return;
  MakeBlockRows<kFarWords, kFarBlock, kFill>(m, m.w.far, 1, tasks, m.w.counters->next_far + kFill, far_memory);
}

// The blocks of PatternKernel that each class gets.
struct PatternShares {
  unsigned of_block, of_middle, of_near, of_tiny;
};

// Makes all other rows.
template <bool kFill>
__global__ void __launch_bounds__(kThreads, 4) PatternKernel(PatternArguments m, PatternShares shares) {
  const OverlapNext overlap;
  extern __shared__ uint4 pattern_memory[];
  const PatternWorkspace& w = m.w;
  const unsigned* rows = w.counters->pattern_rows;
  const int32_t last = m.a.rows - 1;
  unsigned block = blockIdx.x;
  if (block < shares.of_block) {
    if (block >= rows[kBlock]) return;
    MakeBlockRows<kMiddleWords, kThreads, kFill>(m, w.far + last, -1, rows[kBlock], w.counters->next_block + kFill,
                                                 pattern_memory);
    return;
  }
  block -= shares.of_block;
  if (block < shares.of_middle) {
    MakeNearRows<kMiddleWords, kFill>(m, block, shares.of_middle, w.near + last, -1, rows[kMiddle], pattern_memory);
    return;
  }
  block -= shares.of_middle;
  if (block < shares.of_near) {
    MakeNearRows<kNearWords, kFill>(m, block, shares.of_near, w.near, 1, rows[kNear], pattern_memory);
    return;
  }
  block -= shares.of_near;
  constexpr auto kMake = kFill ? MergeOutput::kColumns : MergeOutput::kCount;
  MergeRows<int32_t, PlusTimes<int32_t>, kMake>(
      WithoutValues(m.a), WithoutValues(m.b), m.kinds, m.offsets, int64_t{block} * kThreads, 1,
      {m.indices, nullptr, reinterpret_cast<int32_t*>(pattern_memory), nullptr});
}

// Makes tiny rows where they are many: a kernel of their own has all registers and first-level cache to itself.
template <bool kFill>
__global__ void TinyPatternKernel(PatternArguments m) {
  const OverlapNext overlap;
  __shared__ int32_t stage[kFill ? kThreads * kStagedPerThread : 1];
  constexpr auto kMake = kFill ? MergeOutput::kColumns : MergeOutput::kCount;
  MergeRows<int32_t, PlusTimes<int32_t>, kMake>(WithoutValues(m.a), WithoutValues(m.b), m.kinds, m.offsets,
                                                int64_t{blockIdx.x} * kThreads, 1,
                                                {m.indices, nullptr, stage, nullptr});
}

// Counts or writes the rows of all classes; `rows` bounds the number of rows of each class.
template <bool kFill>
absl::Status MakePattern(const ExecContext& ctx, const PatternArguments& m, const unsigned* rows) {
  Launcher launcher(ctx);
  INTRAWARP_RETURN_IF_ERROR(
      launcher.LaunchCapped(2, FarKernel<kFill>, rows[kFar], 1, kFarBlock, sizeof(BlockBits<kFarWords, kFarBlock>), m));
  INTRAWARP_ASSIGN_OR_RETURN(const int multiprocessors, launcher.Multiprocessors());
  const auto share = [&](int of_class, int per_block, int each) {
    const unsigned most = static_cast<unsigned>(multiprocessors) * each;
    return std::min((rows[of_class] + per_block - 1) / per_block, most);
  };
  PatternShares shares = {share(kBlock, 1, 4), share(kMiddle, kWarps, 16), share(kNear, kWarps, 16), 0};
  constexpr unsigned kManyRows = 65536;
  if (rows[kTiny] > kManyRows) {
    INTRAWARP_RETURN_IF_ERROR(
        launcher.LaunchCapped(INT_MAX, TinyPatternKernel<kFill>, BlocksFor(m.a.rows), 1, kThreads, 0, m));
  } else if (rows[kTiny] > 0) {
    shares.of_tiny = BlocksFor(m.a.rows);
  }
  const int64_t blocks = int64_t{shares.of_block} + shares.of_middle + shares.of_near + shares.of_tiny;
  const size_t memory =
      std::max<size_t>({shares.of_block > 0 ? sizeof(BlockBits<kMiddleWords, kThreads>) : 0,
                        shares.of_middle > 0 ? kWarps * sizeof(NearBits<kMiddleWords>) : 0,
                        shares.of_near > 0 ? kWarps * sizeof(NearBits<kNearWords>) : 0,
                        kFill && shares.of_tiny > 0 ? kThreads * kStagedPerThread * sizeof(int32_t) : 0});
  return launcher.LaunchCapped(INT_MAX, PatternKernel<kFill>, blocks, 1, kThreads, static_cast<int>(memory), m, shares);
}

}  // namespace

absl::Status CountPattern(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                          const PatternWorkspace& w, bool counted, uint8_t* kinds, int64_t* offsets) {
  INTRAWARP_RETURN_IF_ERROR(ClassifyRows(ctx, a, w, counted, kinds));
  unsigned any[kPatternClasses];
  std::fill(any, any + kPatternClasses, static_cast<unsigned>(a.rows));
  if (counted) any[kTiny] = 0;
  if (b.columns <= kMiddleWords * 32) any[kFar] = 0;
  if (b.columns <= kNearWords * 32) any[kMiddle] = 0;
  return MakePattern<false>(ctx, {a, b, w, kinds, offsets, nullptr}, any);
}

absl::Status FillPattern(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                         const PatternWorkspace& w, const unsigned* rows, const uint8_t* kinds, const int64_t* offsets,
                         int32_t* indices) {
  return MakePattern<true>(ctx, {a, b, w, kinds, const_cast<int64_t*>(offsets), indices}, rows);
}

}  // namespace intrawarp::cuda::spgemm
