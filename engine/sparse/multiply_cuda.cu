// SPDX-License-Identifier: Apache-2.0
// The product on CUDA: rows by their work, no atomics on values. Blocks of entries go by tiles (tiles.h), the rest by
// scalar products (multiply_analysis.h, multiply_pattern.h, multiply_route.h, multiply_values.h); then a mask and an
// addend (multiply_finish.h).
#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/sparse/multiply_device.cuh"
#include "engine/sparse/multiply_finish.h"
#include "engine/sparse/multiply_list.h"
#include "engine/sparse/multiply_pattern.h"
#include "engine/sparse/multiply_route.h"
#include "engine/sparse/multiply_transpose.h"
#include "engine/sparse/multiply_values.h"
#include "engine/sparse/tiles.h"

namespace intrawarp::cuda {
namespace {

// Page-locked memory that the device writes its counters to, which the host looks at until they are there: waiting for
// the stream, and copies, take some us longer. Kept for the next product, for as long as the process runs.
class Mailbox {
 public:
  static absl::StatusOr<Mailbox> Take() {
    Mailbox taken;
    {
      const std::lock_guard lock(Kept().mutex);
      if (!Kept().free.empty()) {
        taken.memory_ = Kept().free.back();
        Kept().free.pop_back();
      }
    }
    if (taken.memory_ == nullptr) {
      void* memory = nullptr;
      INTRAWARP_CUDA_RETURN_IF_ERROR(cudaHostAlloc(&memory, sizeof(HostCounters), cudaHostAllocPortable));
      taken.memory_ = static_cast<HostCounters*>(memory);
    }
    taken.memory_->ready = 0;
    return taken;
  }
  Mailbox(Mailbox&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)) {}
  Mailbox& operator=(Mailbox&&) = delete;
  ~Mailbox() {
    if (memory_ == nullptr) return;
    const std::lock_guard lock(Kept().mutex);
    Kept().free.push_back(memory_);
  }

  HostCounters* get() const { return memory_; }

  // Until the work that writes them, which is in the stream, has done so.
  absl::StatusOr<Counters> Wait(const ExecContext& ctx) const {
    constexpr int kLooks = 1000;  // before the stream is asked whether it failed
    std::atomic_ref<unsigned> ready(memory_->ready);
    for (int looks = 1; ready.load(std::memory_order_acquire) == 0; ++looks) {
      if (looks % kLooks != 0 || cudaStreamQuery(CudaStream(ctx)) == cudaErrorNotReady) continue;
      INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
      break;
    }
    return memory_->counters;
  }

 private:
  struct List {
    std::mutex mutex;
    std::vector<HostCounters*> free;
  };
  static List& Kept() {
    static List* const list = new List;
    return *list;
  }
  Mailbox() = default;
  HostCounters* memory_ = nullptr;
};

// To nearest, ties to even, with `dropped` bits less of significand; the exponent is float32's. The largest values,
// which have no neighbour above, stay.
__device__ float RoundSignificand(float x, int dropped) {
  const uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7f800000u) == 0x7f800000u) return x;
  const uint32_t rounded = (bits + (1u << (dropped - 1)) - 1 + ((bits >> dropped) & 1)) & ~((1u << dropped) - 1);
  return (rounded & 0x7f800000u) == 0x7f800000u ? x : __uint_as_float(rounded);
}

__global__ void RoundKernel(const float* from, int64_t count, int dropped, float* to) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) to[i] = RoundSignificand(from[i], dropped);
}

// 0 for those that take values as they are.
int DroppedBits(MultiplyPrecision precision) {
  switch (precision) {
    case MultiplyPrecision::kFp16:
    case MultiplyPrecision::kTf32:
      return 13;
    case MultiplyPrecision::kBf16:
      return 16;
    default:
      return 0;
  }
}

// The matrix with rounded values, in the arena.
absl::StatusOr<ConstCsrView> Rounded(const ExecContext& ctx, ConstCsrView m, int dropped) {
  if (m.entries == 0) return m;
  INTRAWARP_ASSIGN_OR_RETURN(float* const values, ctx.arena().Allocate<float>(m.entries));
  RoundKernel<<<BlocksFor(m.entries), kThreads, 0, CudaStream(ctx)>>>(static_cast<const float*>(m.values), m.entries,
                                                                      dropped, values);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  m.values = values;
  return m;
}

const auto ProductPattern = MultiplyPlanAccess::ProductPattern;

// `a` and `b` have the patterns of the plan; `counters` may be null.
TilePlan TilePlanOf(const MultiplyOptions& options, const ConstPatternView& a, const ConstPatternView& b, bool square,
                    const Buffer& tiles, TileCounters* counters) {
  const bool forced = options.path == MultiplyPath::kTiles;
  TilePlan plan = {a, b, {}, {}, square, forced, counters};
  plan.a_tiles = TileMatrixIn(tiles.as<char>(), a, forced);
  plan.b_tiles = square ? plan.a_tiles : TileMatrixIn(tiles.as<char>() + TileMatrixBytes(a, forced), b, forced);
  return plan;
}

absl::Status LaunchTiles(const ExecContext& ctx, const MultiplyPlan& plan, const ConstCsrView& a, const ConstCsrView& b,
                         void* values) {
  const auto& lengths = MultiplyPlanAccess::Lengths(plan);
  if (lengths[kProductTiles] == 0) return absl::OkStatus();
  const TilePlan tiles =
      TilePlanOf(plan.options(), a, b, lengths[kIsSquare] != 0, MultiplyPlanAccess::Tiles(plan), nullptr);
  return ExecuteTiles(ctx, tiles, {lengths[kATiles], lengths[kBTiles], lengths[kProductTiles]}, a.values, b.values,
                      plan.value_type(), DroppedBits(plan.options().precision) > 0, plan.options().alpha,
                      ProductPattern(plan).row_offsets, MultiplyPlanAccess::ProductTiles(plan).as<char>(), values);
}

// Rows that are made faster than by lists: those that a thread merges, and those that share their pattern. At most.
int64_t RowsOfFewLooks(const MultiplyPlan& plan) {
  const auto& lengths = MultiplyPlanAccess::Lengths(plan);
  return lengths[kTinyRows] + kGroup * (lengths[kGroup6144] + lengths[kGroup10240] + lengths[kGroupLargest]);
}

// Whether values are made from lists: where entries have few products, or products are so few that their latencies are
// what takes time.
bool IsListed(const MultiplyPlan& plan, int64_t products, int64_t entries) {
  const MultiplyOptions& options = plan.options();
  constexpr int64_t kFewProducts = int64_t{1} << 23, kFewEach = 8;
  if (products > kMostListed || entries == 0) return false;
  if (options.path == MultiplyPath::kListed) return true;
  return options.path == MultiplyPath::kAuto && options.many_executions && !MultiplyPlanAccess::Once(plan) &&
         (products <= kFewProducts ||
          (products <= kFewEach * entries && 2 * RowsOfFewLooks(plan) < plan.pattern().rows));
}

absl::Status ExecuteAll(const ExecContext& ctx, const MultiplyPlan& plan, const ConstCsrView& a, const ConstCsrView& b,
                        void* values) {
  const ProductList& listed = MultiplyPlanAccess::Listed(plan);
  if (!listed.empty()) {
    return ExecuteList(ctx, listed, ProductPattern(plan).entries, a, b, plan.options().semiring, plan.options().alpha,
                       values);
  }
  INTRAWARP_RETURN_IF_ERROR(LaunchTiles(ctx, plan, a, b, values));
  return ExecuteRows(ctx, plan, a, b, values);
}

absl::StatusOr<MultiplyEstimate> EstimateProduct(const ExecContext& ctx, const ConstPatternView& a,
                                                 const ConstPatternView& b, const MultiplyOptions& options) {
  INTRAWARP_ASSIGN_OR_RETURN(const Buffer counters, ctx.device().Allocate(sizeof(Counters), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Fill(counters.as<void>(), 0, sizeof(Counters), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(Analyse(ctx, a, b, counters.as<Counters>(), nullptr, nullptr, nullptr, false));
  Counters totals;
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(&totals, counters.as<void>(), sizeof(totals), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  const int value_bytes = static_cast<int>(BytesPerValue(ValueTypeOf(options.precision)));
  MultiplyEstimate e;
  const auto counted = [](uint64_t n) {
    return static_cast<int64_t>(std::min<uint64_t>(n, MultiplyEstimate::kMostCounted));
  };
  e.products = counted(totals.products);
  e.max_entries = counted(totals.max_entries);
  const bool tiles = TilesArePossible(a, b, options), forced = options.path == MultiplyPath::kTiles;
  const int64_t rounded = DroppedBits(options.precision) == 0
                              ? 0
                              : Arena::Rounded(a.entries * value_bytes) + Arena::Rounded(b.entries * value_bytes);
  const int64_t to_execute =
      rounded + (tiles ? TileWorkspaceBytes(a.entries, b.entries, ValueTypeOf(options.precision), forced) : 0);
  e.workspace_bytes =
      std::max<int64_t>(Arena::Rounded(CountersBytes(a.rows)) + PatternWorkspaceBytes(a.rows), to_execute);
  e.plan_bytes = (int64_t{a.rows} + 1) * sizeof(int64_t) + e.max_entries * sizeof(int32_t) + RouteBytes(a.rows) +
                 MostSegmentBytes(a, b, e.products, e.max_entries, ValueTypeOf(options.precision));
  if (tiles) {
    const int64_t pairs = forced ? counted(a.entries * (b.columns / 8 + uint64_t{1})) : e.products / kTileProducts;
    e.plan_bytes += TileMatrixBytes(a, forced) + TileMatrixBytes(b, forced) + TileProductBytes(pairs, pairs);
  }
  if ((options.many_executions || options.path == MultiplyPath::kListed) && e.products <= kMostListed) {
    e.plan_bytes += MostListBytes(e.products, a.entries, e.max_entries);
  }
  e.value_bytes = e.max_entries * value_bytes;
  return e;
}

absl::Status PlanProduct(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                         MultiplyPlan& plan) {
  Device& device = ctx.device();
  MultiplyPlanAccess access(plan);
  const MultiplyOptions& options = plan.options();
  const int64_t rows = a.rows, offsets_bytes = (rows + 1) * sizeof(int64_t);
  INTRAWARP_ASSIGN_OR_RETURN(access.offsets, device.Allocate(offsets_bytes, ctx.stream()));
  int64_t* offsets = access.offsets.as<int64_t>();
  if (rows == 0) return device.Fill(offsets, 0, offsets_bytes, ctx.stream());

  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(void* const zeroed, ctx.arena().AllocateBytes(CountersBytes(rows)));
  INTRAWARP_RETURN_IF_ERROR(device.Fill(zeroed, 0, CountersBytes(rows), ctx.stream()));
  INTRAWARP_ASSIGN_OR_RETURN(const PatternWorkspace w, MakePatternWorkspace(ctx, rows, static_cast<Counters*>(zeroed)));
  INTRAWARP_ASSIGN_OR_RETURN(access.route, device.Allocate(RouteBytes(rows), ctx.stream()));
  uint8_t* const kinds = RowKindsIn(access.route, a.rows);
  const bool try_tiles = TilesArePossible(a, b, options);
  INTRAWARP_RETURN_IF_ERROR(Analyse(ctx, a, b, w.counters, w.spans, kinds, offsets, try_tiles));
  TilePlan tiles = {};
  if (try_tiles) {
    const bool forced = options.path == MultiplyPath::kTiles, square = SamePattern(a, b);
    const int64_t bytes = TileMatrixBytes(a, forced) + (square ? 0 : TileMatrixBytes(b, forced));
    INTRAWARP_ASSIGN_OR_RETURN(access.tiles, device.Allocate(bytes, ctx.stream()));
    tiles = TilePlanOf(options, a, b, square, access.tiles, &w.counters->tiles);
    INTRAWARP_RETURN_IF_ERROR(CountTiles(ctx, tiles, kTiled, kinds, offsets));
  }
  INTRAWARP_RETURN_IF_ERROR(CountPattern(ctx, a, b, w, kinds, offsets));
  INTRAWARP_ASSIGN_OR_RETURN(const Mailbox mailbox, Mailbox::Take());
  INTRAWARP_RETURN_IF_ERROR(
      RouteRows(ctx, w.spans, a.rows, plan.value_type(), w.counters, access.route, offsets, mailbox.get()));
  INTRAWARP_ASSIGN_OR_RETURN(const Counters counters, mailbox.Wait(ctx));

  access.entries = static_cast<int64_t>(counters.entries);
  for (int c = 0; c < kValueClasses; ++c) access.lengths[c] = counters.value_rows[c];
  access.lengths[kTinyRows] = counters.pattern_rows[kTiny];
  access.lengths[kProductTiles] = static_cast<int64_t>(counters.tiles.product_tiles);
  access.lengths[kATiles] = counters.tiles.tiles[0];
  access.lengths[kBTiles] = counters.tiles.tiles[1];
  access.lengths[kIsSquare] = tiles.square;
  if (counters.tiles.product_tiles == 0) access.tiles = Buffer();
  INTRAWARP_ASSIGN_OR_RETURN(access.indices, device.Allocate(access.entries * sizeof(int32_t), ctx.stream()));
  if (access.entries == 0) return absl::OkStatus();
  unsigned rows_to_fill[kPatternClasses];
  std::copy_n(counters.pattern_rows, kPatternClasses, rows_to_fill);
  if (LeavesColumns(plan)) rows_to_fill[kTiny] = 0;
  INTRAWARP_RETURN_IF_ERROR(FillPattern(ctx, a, b, w, rows_to_fill, kinds, offsets, access.indices.as<int32_t>()));
  if (counters.tiles.product_tiles > 0) {
    INTRAWARP_ASSIGN_OR_RETURN(
        access.product_tiles,
        device.Allocate(TileProductBytes(counters.tiles.product_tiles, counters.tiles.pairs), ctx.stream()));
    INTRAWARP_RETURN_IF_ERROR(FillTiles(ctx, tiles, kTiled, kinds, offsets, access.indices.as<int32_t>(),
                                        counters.tiles.product_tiles, access.product_tiles.as<char>()));
  }
  const int64_t products = static_cast<int64_t>(std::min<unsigned long long>(counters.products, INT64_MAX));
  if (IsListed(plan, products, access.entries)) {
    INTRAWARP_RETURN_IF_ERROR(ListProducts(ctx, a, b, plan.pattern(), products, &access.listed));
  }
  if (!access.listed.empty()) {
    for (Buffer* unused : {&access.tiles, &access.product_tiles, &access.route}) *unused = Buffer();
    return absl::OkStatus();
  }
  return MakeSegments(ctx, plan, &access.segments);
}

absl::Status ExecuteProduct(const ExecContext& ctx, const MultiplyPlan& plan, const ConstCsrView& a,
                            const ConstCsrView& b, void* values) {
  const int dropped = DroppedBits(plan.options().precision);
  if (dropped == 0) return ExecuteAll(ctx, plan, a, b, values);
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(const ConstCsrView rounded_a, Rounded(ctx, a, dropped));
  ConstCsrView rounded_b = b;
  rounded_b.values = rounded_a.values;
  if (b.values != a.values) {
    INTRAWARP_ASSIGN_OR_RETURN(rounded_b, Rounded(ctx, b, dropped));
  }
  return ExecuteAll(ctx, plan, rounded_a, rounded_b, values);
}

absl::StatusOr<MultiplyEstimate> EstimateTransposed(const ExecContext& ctx, const ConstPatternView& a,
                                                    const ConstPatternView& b, const MultiplyOptions& options) {
  if (!options.transpose_a) return EstimateProduct(ctx, a, b, options);
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t workspace, TransposeWorkspaceBytes(a));
  INTRAWARP_ASSIGN_OR_RETURN(const Buffer transposed, ctx.device().Allocate(TransposeBytes(a), ctx.stream()));
  INTRAWARP_ASSIGN_OR_RETURN(Buffer memory, ctx.device().Allocate(workspace, ctx.stream()));
  Arena arena(std::move(memory));
  const ExecContext own(ctx.device(), ctx.stream(), arena);
  INTRAWARP_RETURN_IF_ERROR(MakeTranspose(own, a, transposed.as<char>()));
  INTRAWARP_ASSIGN_OR_RETURN(MultiplyEstimate e,
                             EstimateProduct(own, TransposeIn(transposed.as<char>(), a), b, options));
  e.plan_bytes += TransposeBytes(a);
  e.workspace_bytes = std::max<int64_t>(
      workspace, e.workspace_bytes + Arena::Rounded(a.entries * BytesPerValue(ValueTypeOf(options.precision))));
  return e;
}

absl::Status PlanTransposed(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                            MultiplyPlan& plan) {
  if (!plan.options().transpose_a) return PlanProduct(ctx, a, b, plan);
  MultiplyPlanAccess access(plan);
  INTRAWARP_ASSIGN_OR_RETURN(access.transposed, ctx.device().Allocate(TransposeBytes(a), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(MakeTranspose(ctx, a, access.transposed.as<char>()));
  return PlanProduct(ctx, TransposeIn(access.transposed.as<char>(), a), b, plan);
}

absl::Status ExecuteTransposed(const ExecContext& ctx, const MultiplyPlan& plan, const ConstCsrView& a,
                               const ConstCsrView& b, void* values) {
  if (ProductPattern(plan).entries == 0) return absl::OkStatus();
  if (!plan.options().transpose_a) return ExecuteProduct(ctx, plan, a, b, values);
  ArenaScope scope(ctx.arena());
  const char* const transposed = MultiplyPlanAccess::Transposed(plan).as<char>();
  INTRAWARP_ASSIGN_OR_RETURN(void* const a_values,
                             ctx.arena().AllocateBytes(a.entries * BytesPerValue(plan.value_type())));
  INTRAWARP_RETURN_IF_ERROR(TransposeValues(ctx, a, transposed, a_values));
  return ExecuteProduct(ctx, plan, {TransposeIn(transposed, a), a.type, a_values}, b, values);
}

}  // namespace

absl::StatusOr<MultiplyEstimate> EstimateMultiply(const ExecContext& ctx, const ConstPatternView& a,
                                                  const ConstPatternView& b, const MultiplyOptions& options) {
  INTRAWARP_ASSIGN_OR_RETURN(MultiplyEstimate e, EstimateTransposed(ctx, a, b, options));
  if (!NeedsFinish(options)) return e;
  // A product of its own, whose values go through the workspace.
  const int64_t rows = options.transpose_a ? a.columns : a.rows;
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t workspace, FinishWorkspaceBytes(rows));
  e.workspace_bytes = std::max(e.workspace_bytes + static_cast<int64_t>(Arena::Rounded(e.value_bytes)), workspace);
  e.plan_bytes += FinishBytes(e.max_entries, options);
  if (options.addend) e.max_entries = std::min(e.max_entries + options.addend->entries, MultiplyEstimate::kMostCounted);
  e.plan_bytes += (rows + 1) * sizeof(int64_t) + e.max_entries * sizeof(int32_t);
  e.value_bytes = e.max_entries * BytesPerValue(ValueTypeOf(options.precision));
  return e;
}

absl::Status PlanMultiply(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                          MultiplyPlan& plan) {
  INTRAWARP_RETURN_IF_ERROR(PlanTransposed(ctx, a, b, plan));
  if (!NeedsFinish(plan.options())) return absl::OkStatus();
  MultiplyPlanAccess access(plan);
  access.KeepProduct();
  const ConstPatternView product = ProductPattern(plan);
  INTRAWARP_ASSIGN_OR_RETURN(access.finish,
                             ctx.device().Allocate(FinishBytes(product.entries, plan.options()), ctx.stream()));
  INTRAWARP_ASSIGN_OR_RETURN(access.offsets,
                             ctx.device().Allocate((product.rows + int64_t{1}) * sizeof(int64_t), ctx.stream()));
  return PlanFinish(ctx, product, plan.options(), FinishIn(access.finish.as<char>(), product.entries),
                    access.offsets.as<int64_t>(), &access.indices, &access.entries);
}

absl::Status ExecuteMultiply(const ExecContext& ctx, const MultiplyPlan& plan, const ConstCsrView& a,
                             const ConstCsrView& b, void* values) {
  if (!NeedsFinish(plan.options())) return ExecuteTransposed(ctx, plan, a, b, values);
  ArenaScope scope(ctx.arena());
  const int64_t entries = ProductPattern(plan).entries;
  INTRAWARP_ASSIGN_OR_RETURN(void* const product,
                             ctx.arena().AllocateBytes(entries * BytesPerValue(plan.value_type())));
  INTRAWARP_RETURN_IF_ERROR(ExecuteTransposed(ctx, plan, a, b, product));
  return ExecuteFinish(ctx, FinishIn(MultiplyPlanAccess::Finish(plan).as<char>(), entries), entries, product,
                       plan.options(), values);
}

}  // namespace intrawarp::cuda
