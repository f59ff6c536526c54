// SPDX-License-Identifier: Apache-2.0
// Estimates and plans products on CUDA. The phases of planning are: transpose.h; short_rows.h (counts) where rows are
// likely to be short; unless all are, analysis.h, tiles.h (counts), pattern.h (counts), row_bins.h; the columns by
// pattern.h, short_rows.h and tiles.h; reuse_plan.h or row_pieces.h; mask_add.h. Under a mask that is not a complement
// mask_route.h chooses: either transpose.h, masked.h and mask_add.h, or all of the above with mask_selection.h before
// mask_add.h. plan.cu executes. No phase has atomics on values.
#include <algorithm>
#include <climits>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/sparse/cuda/analysis.h"
#include "engine/sparse/cuda/counter_mailbox.h"
#include "engine/sparse/cuda/limits.h"
#include "engine/sparse/cuda/mask_route.h"
#include "engine/sparse/cuda/mask_selection.h"
#include "engine/sparse/cuda/pattern.h"
#include "engine/sparse/cuda/plan.h"
#include "engine/sparse/cuda/rounding.h"
#include "engine/sparse/cuda/short_rows.h"
#include "engine/sparse/multiply_kernels.h"

namespace intrawarp::cuda {
namespace spgemm {
namespace {

int64_t Counted(uint64_t n) { return static_cast<int64_t>(std::min<uint64_t>(n, MultiplyEstimate::kMostCounted)); }

// Counts the work of op(A) B, under a mask unless `mask` is null. `memory` holds the counters, on the device. Waits.
absl::StatusOr<Counters> CountWork(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                                   const MultiplyOptions& options, const ConstPatternView* mask, void* memory) {
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Fill(memory, 0, sizeof(Counters), ctx.stream()));
  auto* const counters = static_cast<Counters*>(memory);
  const bool count_runs = mask != nullptr && TilesArePossible(a, b, options);
  INTRAWARP_RETURN_IF_ERROR(Analyse(ctx, a, b, counters, nullptr, nullptr, nullptr,
                                    mask != nullptr ? mask->row_offsets : nullptr, count_runs));
  if (count_runs && !SamePattern(a, b)) INTRAWARP_RETURN_IF_ERROR(CountTileRuns(ctx, b, &counters->tiles.runs[1]));
  Counters totals;
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(&totals, memory, sizeof(totals), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  return totals;
}

// Upper bound on the bytes of a TilePlan.
int64_t TilePlanBytes(const ConstPatternView& a, const ConstPatternView& b, bool forced, int64_t multiplications) {
  const int64_t pairs =
      forced ? Counted(a.entries * (b.columns / 8 + uint64_t{1})) : multiplications / kTileMultiplications;
  return TilePlan::MatrixBytes(a, forced) + TilePlan::MatrixBytes(b, forced) + TilePlan::ProductBytes(pairs, pairs);
}

// The work of a product under a mask, which has been counted.
MaskedWork MaskedWorkOf(const ConstPatternView& a, const ConstPatternView& b, const MultiplyOptions& options,
                        const Counters& counters) {
  MaskedWork w;
  w.multiplications = Counted(counters.multiplications);
  w.tiny_multiplications = Counted(counters.mask.tiny_multiplications);
  w.visits = Counted(counters.mask.visits);
  w.pieces = Counted(counters.mask.pieces);
  w.mask_entries = options.mask->entries;
  const unsigned long long* const runs = counters.tiles.runs;
  w.tiles = TilesArePossible(a, b, options) && (options.path == MultiplyPath::kTiles ||
                                                (RunsAllowTiles(a.entries, Counted(runs[0])) &&
                                                 (SamePattern(a, b) || RunsAllowTiles(b.entries, Counted(runs[1])))));
  return w;
}

// Arena bytes of the rounded values of A and B.
int64_t RoundedBytes(const ConstPatternView& a, const ConstPatternView& b, const MultiplyOptions& options) {
  if (DroppedBits(options.precision) == 0) return 0;
  return Arena::Rounded(a.entries * sizeof(float)) + Arena::Rounded(b.entries * sizeof(float));
}

// The estimate of the whole product with so many multiplications and entries: `a` is op(A).
MultiplyEstimate EstimateWhole(const ConstPatternView& a, const ConstPatternView& b, const MultiplyOptions& options,
                               uint64_t multiplications, uint64_t entries) {
  MultiplyEstimate e;
  e.multiplications = Counted(multiplications);
  e.max_entries = Counted(entries);
  const ValueType type = ValueTypeOf(options.precision);
  const bool tiles = TilesArePossible(a, b, options), forced = options.path == MultiplyPath::kTiles;
  const int64_t to_execute =
      RoundedBytes(a, b, options) + (tiles ? TileWorkspaceBytes(a.entries, b.entries, type, forced) : 0);
  e.workspace_bytes = std::max(PatternWorkspaceBytes(a.rows), to_execute);
  e.plan_bytes = (int64_t{a.rows} + 1) * sizeof(int64_t) + e.max_entries * sizeof(int32_t) + RowBins::Bytes(a.rows) +
                 RowPieces::MostBytes(a, b, e.multiplications, e.max_entries, type, AccumulatorsOf(options.path));
  if (tiles) e.plan_bytes += TilePlanBytes(a, b, forced, e.multiplications);
  const bool may_reuse = options.many_executions || options.path == MultiplyPath::kReusePlan;
  if (may_reuse && ReusePlanFits(a.entries, b.entries, e.multiplications)) {
    e.plan_bytes += ReusePlan::MostBytes(e.multiplications, a.entries, e.max_entries);
  }
  e.value_bytes = e.max_entries * BytesPerValue(type);
  return e;
}

// The pattern of C and its values, without what makes them.
MultiplyEstimate EstimateResult(const ConstPatternView& a, const MultiplyOptions& options, const Counters& counters) {
  MultiplyEstimate e;
  e.multiplications = Counted(counters.multiplications);
  e.max_entries = Counted(counters.max_entries);
  e.plan_bytes = (int64_t{a.rows} + 1) * sizeof(int64_t) + e.max_entries * sizeof(int32_t);
  e.value_bytes = e.max_entries * BytesPerValue(ValueTypeOf(options.precision));
  return e;
}

// The estimate of the product by the entries of the mask: `a` is op(A), and C has no addend.
absl::StatusOr<MultiplyEstimate> EstimateMasked(const ConstPatternView& a, const ConstPatternView& b,
                                                const MultiplyOptions& options, const Counters& counters) {
  MultiplyEstimate e = EstimateResult(a, options, counters);
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t to_plan, MaskedWorkspaceBytes(*options.mask));
  e.workspace_bytes = std::max(to_plan, RoundedBytes(a, b, options));
  e.plan_bytes += MaskedPieces::Bytes(MaskedPieces::CapacityFor(a.rows, e.max_entries));
  return e;
}

// The estimate of the whole product, from which the mask then selects.
absl::StatusOr<MultiplyEstimate> EstimateSelected(const ConstPatternView& a, const ConstPatternView& b,
                                                  const MultiplyOptions& options, const Counters& counters) {
  const MultiplyEstimate whole = EstimateWhole(a, b, options, counters.multiplications, counters.mask.whole_entries);
  MultiplyEstimate e = EstimateResult(a, options, counters);
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t to_select, MaskSelection::WorkspaceBytes(*options.mask));
  e.workspace_bytes =
      std::max(to_select, whole.workspace_bytes + static_cast<int64_t>(Arena::Rounded(whole.value_bytes)));
  e.plan_bytes += whole.plan_bytes + MaskSelection::PlacesBytes(e.max_entries);
  return e;
}

// The estimate of each way that a product under a mask can go, and the way that it goes.
struct MaskedEstimate {
  MultiplyEstimate masked, selected;
  MaskRoute route = MaskRoute::kMasked;
};

absl::StatusOr<MaskedEstimate> EstimateUnderMask(const ConstPatternView& a, const ConstPatternView& b,
                                                 const MultiplyOptions& options, const Counters& counters) {
  MaskedEstimate e;
  INTRAWARP_ASSIGN_OR_RETURN(e.masked, EstimateMasked(a, b, options, counters));
  INTRAWARP_ASSIGN_OR_RETURN(e.selected, EstimateSelected(a, b, options, counters));
  e.route = options.mask_route;
  if (e.route == MaskRoute::kAuto) {
    e.route = ChooseMaskRoute(MaskedWorkOf(a, b, options, counters),
                              e.selected.workspace_bytes + e.selected.plan_bytes + e.selected.value_bytes);
  }
  // The choice is made in the workspace, too.
  for (MultiplyEstimate* way : {&e.masked, &e.selected}) {
    way->workspace_bytes = std::max(way->workspace_bytes, static_cast<int64_t>(Arena::Rounded(sizeof(Counters))));
  }
  return e;
}

// The way of a product under a mask; the same for its estimate and its plan. Waits.
absl::StatusOr<MaskRoute> ChooseRoute(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                                      const MultiplyOptions& options) {
  if (options.mask_route != MaskRoute::kAuto) return options.mask_route;
  if (a.entries == 0 || b.entries == 0 || options.mask->entries == 0) return MaskRoute::kMasked;
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(void* const memory, ctx.arena().AllocateBytes(sizeof(Counters)));
  INTRAWARP_ASSIGN_OR_RETURN(const Counters counters, CountWork(ctx, a, b, options, &*options.mask, memory));
  INTRAWARP_ASSIGN_OR_RETURN(const MaskedEstimate e, EstimateUnderMask(a, b, options, counters));
  return e.route;
}

// The estimate of the product before complement mask and addend: `a` is op(A).
absl::StatusOr<MultiplyEstimate> EstimateProduct(const ExecContext& ctx, const ConstPatternView& a,
                                                 const ConstPatternView& b, const MultiplyOptions& options) {
  const ConstPatternView* const mask = IsMasked(options) ? &*options.mask : nullptr;
  INTRAWARP_ASSIGN_OR_RETURN(const Buffer memory, ctx.device().Allocate(sizeof(Counters), ctx.stream()));
  INTRAWARP_ASSIGN_OR_RETURN(const Counters counters, CountWork(ctx, a, b, options, mask, memory.as<void>()));
  if (mask == nullptr) return EstimateWhole(a, b, options, counters.multiplications, counters.max_entries);
  INTRAWARP_ASSIGN_OR_RETURN(const MaskedEstimate e, EstimateUnderMask(a, b, options, counters));
  return e.route == MaskRoute::kWhole ? e.selected : e.masked;
}

// The estimate for op(A) = A^T. The transpose is made in memory of its own, as the arena's size is not known yet.
absl::StatusOr<MultiplyEstimate> EstimateTransposed(const ExecContext& ctx, const ConstPatternView& a,
                                                    const ConstPatternView& b, const MultiplyOptions& options) {
  INTRAWARP_RETURN_IF_ERROR(CheckTranspose(a));
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t workspace, Transpose::WorkspaceBytes(a));
  INTRAWARP_ASSIGN_OR_RETURN(Buffer memory, ctx.device().Allocate(workspace, ctx.stream()));
  Arena arena(std::move(memory));
  const ExecContext own(ctx.device(), ctx.stream(), arena);
  INTRAWARP_ASSIGN_OR_RETURN(const Transpose transpose, MakeTranspose(own, a));
  INTRAWARP_ASSIGN_OR_RETURN(MultiplyEstimate e, EstimateProduct(ctx, transpose.pattern(), b, options));
  e.plan_bytes += transpose.bytes();
  const int64_t values = Arena::Rounded(a.entries * BytesPerValue(ValueTypeOf(options.precision)));
  e.workspace_bytes = std::max(workspace, e.workspace_bytes + values);
  return e;
}

// Adds a complement mask and an addend to the estimate of the product, whose values then go through the workspace.
absl::Status AddMaskAdd(int64_t rows, const MultiplyOptions& options, MultiplyEstimate* e) {
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t workspace, MaskAdd::WorkspaceBytes(rows));
  e->workspace_bytes = std::max(e->workspace_bytes + static_cast<int64_t>(Arena::Rounded(e->value_bytes)), workspace);
  e->plan_bytes += MaskAdd::PlacesBytes(e->max_entries, options);
  if (options.addend) {
    e->max_entries = std::min(e->max_entries + options.addend->entries, MultiplyEstimate::kMostCounted);
  }
  e->plan_bytes += (rows + 1) * sizeof(int64_t) + e->max_entries * sizeof(int32_t);
  e->value_bytes = e->max_entries * BytesPerValue(ValueTypeOf(options.precision));
  return absl::OkStatus();
}

// The state that the steps of planning share.
struct Planning {
  const ExecContext& ctx;
  const ConstPatternView a, b;  // op(A) and B
  const PatternWorkspace workspace;
  Plan& plan;
  CsrPattern& c;
  TileOperands tiles = {};
  uint16_t* counts = nullptr;  // of CountShortRows, if it was called

  int64_t* offsets() const { return c.row_offsets.as<int64_t>(); }
  int32_t* indices() const { return c.column_indices.as<int32_t>(); }
  uint8_t* kinds() const { return plan.row_bins.view().kinds; }
};

// Makes the tiles of the operands, and counts the entries of the rows that go by tiles into the offsets of C.
absl::Status CountByTiles(Planning& p) {
  const bool forced = p.plan.options.path == MultiplyPath::kTiles;
  INTRAWARP_ASSIGN_OR_RETURN(p.plan.tiles, TilePlan::Allocate(p.ctx, p.a, p.b, forced));
  p.tiles = p.plan.tiles.Operands(p.a, p.b, &p.workspace.counters->tiles);
  return CountTiles(p.ctx, p.tiles, p.kinds(), p.offsets());
}

// Measures all rows and counts the short ones. Waits for the counters, which are there unless a row is long; `mailbox`
// lives until the kernel has ended.
absl::StatusOr<std::optional<Counters>> CountShort(Planning& p, const CounterMailbox& mailbox) {
  INTRAWARP_ASSIGN_OR_RETURN(p.counts, p.ctx.arena().Allocate<uint16_t>(p.a.rows));
  INTRAWARP_RETURN_IF_ERROR(
      CountShortRows(p.ctx, p.a, p.b, p.workspace, p.plan.row_bins.view(), p.counts, p.offsets(), mailbox.get()));
  return mailbox.WaitUnlessLong(p.ctx);
}

// Measures all rows, and counts those that go by tiles.
absl::Status MeasureRows(Planning& p) {
  const PatternWorkspace& w = p.workspace;
  const bool try_tiles = TilesArePossible(p.a, p.b, p.plan.options);
  INTRAWARP_RETURN_IF_ERROR(
      Analyse(p.ctx, p.a, p.b, w.counters, w.extents, p.kinds(), p.offsets(), nullptr, try_tiles));
  return try_tiles ? CountByTiles(p) : absl::OkStatus();
}

// Makes the offsets of C and the bins of all rows. Waits for the counters.
absl::StatusOr<Counters> BinAll(Planning& p) {
  const PatternWorkspace& w = p.workspace;
  INTRAWARP_RETURN_IF_ERROR(CountPattern(p.ctx, p.a, p.b, w, p.counts != nullptr, p.kinds(), p.offsets()));
  INTRAWARP_ASSIGN_OR_RETURN(const CounterMailbox mailbox, CounterMailbox::Take());
  INTRAWARP_RETURN_IF_ERROR(BinRows(p.ctx, p.plan.row_bins.view(), w.extents, p.counts,
                                    ValueTypeOf(p.plan.options.precision), AccumulatorsOf(p.plan.options.path),
                                    w.counters, p.offsets(), mailbox.get()));
  return mailbox.Wait(p.ctx);
}

// Makes the offsets of C and the row bins. Waits for the counters.
absl::StatusOr<Counters> CountEntries(Planning& p) {
  if (!ShortRowsAreLikely(p.a, p.b, p.plan.options)) {
    INTRAWARP_RETURN_IF_ERROR(MeasureRows(p));
    return BinAll(p);
  }
  INTRAWARP_ASSIGN_OR_RETURN(const CounterMailbox of_short_rows, CounterMailbox::Take());
  INTRAWARP_ASSIGN_OR_RETURN(const std::optional<Counters> short_only, CountShort(p, of_short_rows));
  if (short_only) return *short_only;
  absl::StatusOr<Counters> all = BinAll(p);
  // Before an error leaves, the first kernel may still write to its mailbox.
  if (!all.ok()) (void)p.ctx.device().Synchronize(p.ctx.stream());
  return all;
}

// Writes the columns of C, and makes the tiles of C.
absl::Status FillColumns(Planning& p, const Counters& counters) {
  unsigned rows_to_fill[kPatternClasses];
  std::copy_n(counters.pattern_rows, kPatternClasses, rows_to_fill);
  if (p.plan.DefersColumns()) rows_to_fill[kTiny] = 0;
  INTRAWARP_RETURN_IF_ERROR(
      FillPattern(p.ctx, p.a, p.b, p.workspace, rows_to_fill, p.kinds(), p.offsets(), p.indices()));
  if (!p.plan.DefersColumns()) {
    INTRAWARP_RETURN_IF_ERROR(FillShortRows(p.ctx, p.a, p.b, p.plan.row_bins, p.c.view()));
  }
  if (counters.tiles.product_tiles == 0) return absl::OkStatus();
  return FillTiles(p.ctx, p.tiles, counters.tiles, p.kinds(), p.offsets(), p.indices(), &p.plan.tiles);
}

// Whether a reuse plan makes executions faster: entries have few multiplications, or there are so few multiplications
// that latencies dominate; and not most rows are merged, or share a pattern and meet long rows of B, as other kernels
// compute those faster.
bool WantsReusePlan(const Planning& p, int64_t multiplications) {
  constexpr int64_t kFewMultiplications = int64_t{1} << 23, kFewEach = 8, kLongRowOfB = 16;
  const Plan& plan = p.plan;
  const CsrPattern& c = p.c;
  if (!ReusePlanFits(p.a.entries, p.b.entries, multiplications) || c.entries == 0) return false;
  if (plan.options.path == MultiplyPath::kReusePlan) return true;
  const bool meet_long_rows = multiplications >= kLongRowOfB * p.a.entries;
  const int64_t otherwise = plan.row_bins.MergedRows() + (meet_long_rows ? plan.row_bins.GroupedRows() : 0);
  return plan.options.path == MultiplyPath::kAuto && plan.options.many_executions &&
         plan.executions != Executions::kOnce &&
         (multiplications <= kFewMultiplications ||
          (multiplications <= kFewEach * c.entries && 2 * otherwise < c.rows));
}

// Makes the reuse plan, which replaces tiles and row bins, or cuts long rows into pieces.
absl::Status PrepareExecutions(Planning& p, const Counters& counters) {
  const int64_t multiplications =
      static_cast<int64_t>(std::min<unsigned long long>(counters.multiplications, INT64_MAX));
  if (WantsReusePlan(p, multiplications)) {
    INTRAWARP_ASSIGN_OR_RETURN(p.plan.reuse, MakeReusePlan(p.ctx, p.a, p.b, p.c.view(), multiplications));
  }
  if (!p.plan.reuse.empty()) {
    p.plan.tiles = TilePlan();
    p.plan.row_bins = RowBins();
    return absl::OkStatus();
  }
  INTRAWARP_ASSIGN_OR_RETURN(p.plan.row_pieces,
                             CutRows(p.ctx, p.plan.row_bins, p.c.view(), ValueTypeOf(p.plan.options.precision)));
  return absl::OkStatus();
}

// Plans the whole product: `a` is op(A).
absl::StatusOr<CsrPattern> PlanWhole(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                                     Plan& plan) {
  Device& device = ctx.device();
  CsrPattern c = {a.rows, b.columns, 0, {}, {}};
  const int64_t offsets_bytes = (int64_t{a.rows} + 1) * sizeof(int64_t);
  INTRAWARP_ASSIGN_OR_RETURN(c.row_offsets, device.Allocate(offsets_bytes, ctx.stream()));
  if (a.rows == 0) {
    INTRAWARP_RETURN_IF_ERROR(device.Fill(c.row_offsets.as<void>(), 0, offsets_bytes, ctx.stream()));
    return c;
  }
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(const PatternWorkspace workspace, MakePatternWorkspace(ctx, a.rows));
  INTRAWARP_ASSIGN_OR_RETURN(plan.row_bins, RowBins::Allocate(ctx, a.rows));
  Planning p = {ctx, a, b, workspace, plan, c};
  INTRAWARP_ASSIGN_OR_RETURN(const Counters counters, CountEntries(p));
  plan.row_bins.SetLengths(counters);
  if (counters.tiles.product_tiles == 0) plan.tiles = TilePlan();
  c.entries = static_cast<int64_t>(counters.entries);
  INTRAWARP_RETURN_IF_ERROR(CheckProduct(c.entries));
  INTRAWARP_ASSIGN_OR_RETURN(c.column_indices, AllocateForEntries(ctx, "columns", c.entries, sizeof(int32_t)));
  if (c.entries == 0) return c;
  INTRAWARP_RETURN_IF_ERROR(FillColumns(p, counters));
  INTRAWARP_RETURN_IF_ERROR(PrepareExecutions(p, counters));
  return c;
}

// Plans the product: `a` is op(A), and the result is the pattern before complement mask and addend.
absl::StatusOr<CsrPattern> PlanProduct(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                                       Plan& plan) {
  if (!IsMasked(plan.options)) return PlanWhole(ctx, a, b, plan);
  const ConstPatternView& mask = *plan.options.mask;
  INTRAWARP_ASSIGN_OR_RETURN(const MaskRoute route, ChooseRoute(ctx, a, b, plan.options));
  if (route == MaskRoute::kMasked) return PlanMasked(ctx, a, b, mask, &plan.masked);
  INTRAWARP_ASSIGN_OR_RETURN(CsrPattern whole, PlanWhole(ctx, a, b, plan));
  return PlanSelection(ctx, std::move(whole), mask, &plan.selection);
}

}  // namespace
}  // namespace spgemm

absl::StatusOr<MultiplyEstimate> EstimateMultiply(const ExecContext& ctx, const ConstPatternView& a,
                                                  const ConstPatternView& b, const MultiplyOptions& options) {
  INTRAWARP_RETURN_IF_ERROR(spgemm::CheckOperands(a, b, options));
  INTRAWARP_ASSIGN_OR_RETURN(MultiplyEstimate e, options.transpose_a ? spgemm::EstimateTransposed(ctx, a, b, options)
                                                                     : spgemm::EstimateProduct(ctx, a, b, options));
  if (spgemm::NeedsMaskAdd(options)) {
    INTRAWARP_RETURN_IF_ERROR(spgemm::AddMaskAdd(options.transpose_a ? a.columns : a.rows, options, &e));
  }
  return e;
}

absl::StatusOr<PlannedProduct> PlanMultiply(const ExecContext& ctx, const ConstPatternView& a,
                                            const ConstPatternView& b, const MultiplyOptions& options,
                                            Executions executions) {
  INTRAWARP_RETURN_IF_ERROR(spgemm::CheckOperands(a, b, options));
  auto plan = std::make_unique<spgemm::Plan>(options, executions);
  ConstPatternView left = a;
  if (options.transpose_a) {
    INTRAWARP_ASSIGN_OR_RETURN(plan->transpose, spgemm::MakeTranspose(ctx, a));
    left = plan->transpose.pattern();
  }
  INTRAWARP_ASSIGN_OR_RETURN(CsrPattern c, spgemm::PlanProduct(ctx, left, b, *plan));
  if (spgemm::NeedsMaskAdd(options)) {
    INTRAWARP_ASSIGN_OR_RETURN(c, spgemm::PlanMaskAdd(ctx, std::move(c), options, &plan->mask_add));
  }
  return PlannedProduct{std::move(c), std::move(plan)};
}

}  // namespace intrawarp::cuda
