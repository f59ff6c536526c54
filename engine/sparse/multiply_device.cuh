// SPDX-License-Identifier: Apache-2.0
// What the kernels of a product by scalars share: classes of rows, counters, how a warp walks products, launches.
// Internal to multiply_*_cuda.cu.
#ifndef INTRAWARP_ENGINE_SPARSE_MULTIPLY_DEVICE_CUH_
#define INTRAWARP_ENGINE_SPARSE_MULTIPLY_DEVICE_CUH_

#include <algorithm>
#include <climits>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/host_device.h"
#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/sparse/csr.h"
#include "engine/sparse/multiply_kernels.h"
#include "engine/sparse/tiles.h"

namespace intrawarp::cuda {

constexpr unsigned kAll = 0xffffffffu;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kLanesPerRow = 8;  // of the analysis

constexpr int kTinyEntries = 8;  // of A, of a row that one thread merges at most
constexpr int kGroup = 3;        // rows with one pattern that are made together
constexpr int kRunLength = 64;   // rows after which a run of equal patterns is cut

// Words of the bitmap of a warp, of a block.
constexpr int kNearWords = 256, kMiddleWords = 1280, kFarWords = 16384;
constexpr int64_t kFarColumns = int64_t{kFarWords} * 32;

enum PatternClass { kNone, kTiny, kNear, kMiddle, kBlock, kFar, kTiled, kPatternClasses };
// Of a row's kind. kSame: A's row has the pattern of the row before. kHeavy: it has so many entries of A, or products,
// that a block makes it.
constexpr uint8_t kClassMask = 15, kSame = 16, kHeavy = 32;
constexpr int kHeavyEntries = 192;

// Who makes the values of a row. Bits*: a warp, by a bitmap and sums in so many bytes. Table*: a warp, by a hash table
// of so many entries. kSplit: a warp each segment, as in kBitsLargest. TableBlock*, Heavy*: a block, with a hash table
// or a bitmap for so many entries (half of it in float64). kSplitHeavy: a block each segment. Group*: as Bits*, for
// rows that share their pattern.
enum ValueClass {
  kBits4096,
  kBits6144,
  kBits10240,
  kBitsLargest,
  kTable128,
  kTable512,
  kTable1024,
  kSplit,
  kSplitHeavy,
  kTableBlock2048,
  kTableBlock4096,
  kHeavy640,
  kHeavy1280,
  kRowLists,  // that hold single rows
  kGroup6144 = kRowLists,
  kGroup10240,
  kGroupLargest,
  kValueClasses
};
// Also among a plan's lengths.
enum { kTinyRows = kValueClasses, kProductTiles, kATiles, kBTiles, kIsSquare, kLengths };
static_assert(kLengths <= MultiplyPlanAccess::kLengths);
constexpr int kLargestBytes = 22528;
constexpr int kSplitWords = 2048;
constexpr INTRAWARP_HD int BitsBytes(int of_class) {
  switch (of_class) {
    case kBits4096:
      return 4096;
    case kBits6144:
    case kGroup6144:
      return 6144;
    case kBits10240:
    case kGroup10240:
      return 10240;
    default:
      return kLargestBytes;
  }
}
constexpr INTRAWARP_HD int TableEntries(int of_class) {
  return of_class == kTable128 ? 128 : of_class == kTable512 ? 512 : 1024;
}
constexpr INTRAWARP_HD int64_t BytesOfBits(int64_t words, int64_t sums, int value_bytes) {
  return (words * 6 + 7) / 8 * 8 + sums * value_bytes;
}
constexpr int64_t SplitEntries(int value_bytes) {
  return (kLargestBytes - BytesOfBits(kSplitWords, 0, 0)) / value_bytes;
}

// Of kTableBlock*, kHeavy*.
constexpr INTRAWARP_HD int BlockEntries(int of_class, int value_bytes) {
  const int entries = of_class == kTableBlock2048   ? 2048
                      : of_class == kTableBlock4096 ? 4096
                      : of_class == kHeavy640       ? 640
                                                    : 1280;
  return entries * 4 / value_bytes;
}

// Totals and list lengths, on the device.
struct Counters {
  unsigned long long products;
  unsigned long long max_entries;
  unsigned long long entries;
  unsigned pattern_rows[kPatternClasses];
  unsigned value_rows[kValueClasses];
  unsigned next_far[2], next_block[2];  // of their lists, when their entries are counted, and written
  unsigned next_scan, routed;           // of the blocks that scan and route rows: those that began, and ended
  TileCounters tiles;
};

// The counters in the host's memory: `ready` becomes 1 once they are written.
struct HostCounters {
  Counters counters;
  unsigned ready;
};

// Where classes of rows begin, by their number and entries: the fewer there are, the fewer warps would be left waiting
// for a long one.
struct RowLimits {
  unsigned tiny_products;                          // at most, of a row that one thread merges
  unsigned heavy_products, heavy_products_in_run;  // at least; rows of one pattern, which share a warp, stay together
  int long_entries;                                // of A, of a row that a block analyses
};
inline RowLimits RowLimitsOf(const ConstPatternView& a) {
  const int64_t rows = a.rows;
  RowLimits limits;
  limits.tiny_products = rows < 32768 ? 8 : rows < 131072 ? 32 : 64;
  limits.heavy_products = static_cast<unsigned>(std::clamp<int64_t>(rows / 8, 512, 8192));
  limits.heavy_products_in_run = rows < 8192 ? 3 * limits.heavy_products : 65536;
  limits.long_entries = static_cast<int>(std::clamp<int64_t>(4 * (a.entries / std::max<int64_t>(rows, 1)), 64, 256));
  return limits;
}

// Behind them the states of the scan's blocks, of kThreads rows each.
inline int64_t CountersBytes(int64_t rows) {
  return sizeof(Counters) + (rows + kThreads - 1) / kThreads * sizeof(unsigned long long);
}

// What a row of C is made of.
struct Span {
  int first, last;    // its columns: the first and the last
  unsigned products;  // or as many as fit
};

// `rows` consecutive rows, from `row`, that have one pattern.
struct Task {
  int32_t row;
  int32_t rows;
};

// Entries [skipped, skipped + count) of a row of C.
struct Segment {
  int32_t row;
  int32_t skipped;
  int32_t count;
};

inline __device__ int64_t LowerBound(const int32_t* values, int64_t begin, int64_t end, int32_t value) {
  while (begin < end) {
    const int64_t middle = begin + (end - begin) / 2;
    if (values[middle] < value) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

// The places in [*begin, *end) of the first value that is not less than `first`, and than `last`; both searched for at
// once.
inline __device__ void Narrow(const int32_t* values, int32_t first, int32_t last, int64_t* begin, int64_t* end) {
  int64_t low[2] = {*begin, *begin}, high[2] = {*end, *end};
  while (low[0] < high[0] || low[1] < high[1]) {
    int64_t middle[2];
    int32_t value[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      middle[h] = low[h] + (high[h] - low[h]) / 2;
      value[h] = low[h] < high[h] ? values[middle[h]] : 0;
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (low[h] >= high[h]) continue;
      if (value[h] < (h == 0 ? first : last)) {
        low[h] = middle[h] + 1;
      } else {
        high[h] = middle[h];
      }
    }
  }
  *begin = low[0];
  *end = low[1];
}

inline __device__ int InclusiveScan(int value) {
  const int lane = threadIdx.x % 32;
  for (int offset = 1; offset < 32; offset *= 2) {
    const int below = __shfl_up_sync(kAll, value, offset);
    if (lane >= offset) value += below;
  }
  return value;
}

inline __device__ int WarpSum(int value) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(kAll, value, offset);
  return value;
}

inline __device__ uint32_t WarpOr(uint32_t value) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  return __reduce_or_sync(kAll, value);
#else
  for (int offset = 16; offset > 0; offset /= 2) value |= __shfl_xor_sync(kAll, value, offset);
  return value;
#endif
}

// The place of the bit of `mask` below which there are `n` others.
inline __device__ int NthBit(unsigned mask, int n) {
  int place = 0;
  for (int width = 16; width > 0; width /= 2) {
    const int below = __popc(mask >> place & ((1u << width) - 1));
    if (n < below) continue;
    n -= below;
    place += width;
  }
  return place;
}

// A lane's products of one step, kTogether of them.
template <int kTogether>
struct Products {
  int64_t at[kTogether];  // in B; -1 where there is none
  int entry[kTogether];   // the lane whose entry of A it is
  bool mixed[kTogether];  // the lanes' h-th products are of several entries; the same for all lanes
};

// Calls use(products) for the products of each lane's entry of A with its row of B, entries [from, to): those of the
// first lane first, one after another, 32 kTogether at a time. A warp; `use` is called by all lanes.
template <int kTogether, typename Use>
__device__ __forceinline__ void ForProducts(int64_t from, int64_t to, const Use& use) {
  constexpr int64_t kMost = 1 << 25;  // of a row of B at once, so that sums of 32 fit an int
  const int lane = threadIdx.x % 32;
  const unsigned up_to_mine = kAll >> (31 - lane);
  while (true) {
    const int length = static_cast<int>(to - from < kMost ? to - from : kMost);
    const unsigned there = __ballot_sync(kAll, length > 0);
    if (there == 0) return;
    const bool gaps = (there & (there + 1)) != 0;
    const int lane_of = gaps ? NthBit(there, lane) : 0;
    const int ends = InclusiveScan(length), start = ends - length, total = __shfl_sync(kAll, ends, 31);
    const int64_t shifted = from - start;
    int begun = 0;
    for (int first = 0; first < total; first += 32 * kTogether) {
      Products<kTogether> p;
#pragma unroll
      for (int h = 0; h < kTogether; ++h) {
        const int place = start - first - h * 32;
        const uint32_t begins = WarpOr(length > 0 && place >= 0 && place < 32 ? 1u << place : 0);
        const int nth = begun + __popc(begins & up_to_mine) - 1;
        begun += __popc(begins);
        p.entry[h] = gaps ? __shfl_sync(kAll, lane_of, nth) : nth;
        const int number = first + h * 32 + lane;
        const int64_t at = __shfl_sync(kAll, shifted, p.entry[h]) + number;
        p.at[h] = number < total ? at : -1;
        p.mixed[h] = begins > 1;
      }
      use(p);
    }
    from += length;
  }
}

// Entries [from, to) of B that an entry of A meets.
struct Meeting {
  int64_t from = 0, to = 0;
  __device__ Meeting(const ConstPatternView& a, const ConstPatternView& b, int64_t i, int64_t end) {
    if (i >= end) return;
    const int32_t k = a.column_indices[i];
    from = b.row_offsets[k];
    to = b.row_offsets[k + 1];
  }
};

// Appends to lists by class (-1: none): a place for each thread of the block, with one atomic a block and class.
template <int kClasses>
__device__ unsigned Reserve(int of_class, unsigned amount, unsigned* lengths) {
  __shared__ unsigned counts[kClasses], starts[kClasses];
  if (threadIdx.x < kClasses) counts[threadIdx.x] = 0;
  __syncthreads();
  const unsigned mine = of_class >= 0 ? atomicAdd(&counts[of_class], amount) : 0;
  __syncthreads();
  if (threadIdx.x < kClasses && counts[threadIdx.x] > 0) {
    starts[threadIdx.x] = atomicAdd(&lengths[threadIdx.x], counts[threadIdx.x]);
  }
  __syncthreads();
  return of_class >= 0 ? starts[of_class] + mine : 0;
}

// The rows that are made with this one: 0 when it is made with one before it. `kinds` of rows with one pattern agree.
inline __device__ int GroupFrom(const uint8_t* kinds, int32_t row, int32_t rows) {
  int into_run = 0;
  while ((kinds[row - into_run] & kSame) && (kinds[row - into_run - 1] & kClassMask) != kTiled) ++into_run;
  if (into_run % kGroup != 0) return 0;
  int group = 1;
  while (group < kGroup && row + group < rows && (kinds[row + group] & kSame)) ++group;
  return group;
}

// In a kernel that a Launcher launches: the next may begin when this one's blocks have; what comes after it waits for
// those before it, too.
struct BesideOthers {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  __device__ BesideOthers() { asm volatile("griddepcontrol.launch_dependents;"); }
  __device__ ~BesideOthers() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#else
  __device__ BesideOthers() {}
  __device__ ~BesideOthers() {}
#endif
};

// Launches kernels that don't depend on each other, so that they share the device where it can do that (programmatic
// dependent launch, from compute capability 9.0): none waits for the last blocks of another. Work that is put into the
// stream afterwards waits for all. Kernels begin with BesideOthers.
class Launcher {
 public:
  explicit Launcher(const ExecContext& ctx) : ctx_(ctx) {}

  // Blocks of `threads` for `tasks` of `per_block`, `each` a multiprocessor at most, with dynamic shared memory beyond
  // 48 KiB where asked.
  template <typename... Parameters, typename... Arguments>
  absl::Status AtMost(int each, void (*kernel)(Parameters...), int64_t tasks, int per_block, int threads,
                      int shared_bytes, Arguments... arguments) {
    if (tasks == 0) return absl::OkStatus();
    INTRAWARP_RETURN_IF_ERROR(LookAtDevice());
    if (shared_bytes > 48 << 10) {
      INTRAWARP_CUDA_RETURN_IF_ERROR(
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
    }
    const int64_t most = int64_t{multiprocessors_} * each, blocks = (tasks + per_block - 1) / per_block;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(std::max<int64_t>(std::min(blocks, most), 1)));
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = CudaStream(ctx_);
    config.attrs = &attribute;
    config.numAttrs = launched_ && capability_ >= 9 ? 1 : 0;
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaLaunchKernelEx(&config, kernel, arguments...));
    launched_ = true;
    return absl::OkStatus();
  }

  // For tasks that differ: several rounds of blocks even them out.
  template <typename Kernel, typename... Arguments>
  absl::Status Rounds(Kernel kernel, int64_t tasks, int per_block, int threads, int shared_bytes,
                      Arguments... arguments) {
    return AtMost(32, kernel, tasks, per_block, threads, shared_bytes, arguments...);
  }

  absl::StatusOr<int> Multiprocessors() {
    INTRAWARP_RETURN_IF_ERROR(LookAtDevice());
    return multiprocessors_;
  }

 private:
  absl::Status LookAtDevice() {
    if (multiprocessors_ > 0) return absl::OkStatus();
    int device = 0;
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaDeviceGetAttribute(&capability_, cudaDevAttrComputeCapabilityMajor, device));
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device));
    return absl::OkStatus();
  }

  const ExecContext& ctx_;
  int multiprocessors_ = 0, capability_ = 0;
  bool launched_ = false;
};

inline unsigned BlocksFor(int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

}  // namespace intrawarp::cuda

#endif  // INTRAWARP_ENGINE_SPARSE_MULTIPLY_DEVICE_CUH_
