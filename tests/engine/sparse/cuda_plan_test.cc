// SPDX-License-Identifier: Apache-2.0
// The parts of a CUDA plan: their bytes, and how they divide their memory. The memory is the CPU's, so no GPU is
// needed.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/field_error.h"
#include "engine/sparse/cuda/analysis.h"
#include "engine/sparse/cuda/carver.h"
#include "engine/sparse/cuda/limits.h"
#include "engine/sparse/cuda/plan.h"
#include "engine/sparse/cuda/short_rows.h"
#include "tests/engine/device_test.h"
#include "tests/engine/sparse/counting_device.h"
#include "tests/engine/sparse/reference.h"

namespace intrawarp::cuda::spgemm {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A part's array, from its first byte to behind its last.
using Range = std::pair<const char*, const char*>;
template <typename T>
Range RangeOf(const T* begin, int64_t count) {
  return {reinterpret_cast<const char*>(begin), reinterpret_cast<const char*>(begin + count)};
}

void ExpectDivided(const Buffer& memory, std::vector<Range> arrays) {
  std::sort(arrays.begin(), arrays.end());
  const char* end = memory.as<char>();
  for (const Range& array : arrays) {
    EXPECT_GE(array.first, end) << "overlaps the array before";
    EXPECT_EQ((array.first - memory.as<char>()) % Arena::kAlignment, 0u);
    end = array.second;
  }
  EXPECT_LE(end, memory.as<char>() + memory.bytes());
}

class CudaPlanTest : public testing::Test {
 protected:
  Buffer Memory(int64_t bytes) { return *device_.Allocate(bytes, ctx_.stream()); }

  Device& device_ = TestDevice("cpu");
  OwnedContext owned_ = *OwnedContext::Create(device_, 0);
  const ExecContext ctx_ = owned_.context();
};

TEST_F(CudaPlanTest, ACarverCountsWhatItTakes) {
  const auto take = [](Carver& carver) {
    carver.Take<char>(1);
    carver.Take<double>(0);
    return carver.Take<double>(33);
  };
  Carver counting;
  EXPECT_EQ(take(counting), nullptr);
  EXPECT_EQ(counting.bytes(), 256 + 512);
  const Buffer memory = Memory(counting.bytes());
  Carver carver(memory);
  EXPECT_EQ(reinterpret_cast<char*>(take(carver)), memory.as<char>() + 256);
  EXPECT_EQ(carver.bytes(), counting.bytes());
}

TEST_F(CudaPlanTest, RowBinsDivideTheirMemory) {
  for (int32_t rows : {1, 2, 63, 64, 65, 1000}) {
    SCOPED_TRACE(rows);
    const auto bins = RowBins::Allocate(ctx_, rows);
    ASSERT_OK(bins);
    EXPECT_EQ(bins->bytes(), RowBins::Bytes(rows));
    const RowBinsView v = bins->view();
    ExpectDivided(bins->memory, {RangeOf(v.lists, int64_t{RowBinsView::kLists} * rows), RangeOf(v.groups[0], rows / 2),
                                 RangeOf(v.groups[1], rows / 2), RangeOf(v.kinds, rows)});
  }
}

// Two classes share an array, from its two ends.
TEST_F(CudaPlanTest, ListsOfRowBinsMeetInTheMiddle) {
  constexpr int32_t kRows = 101;
  const auto bins = RowBins::Allocate(ctx_, kRows);
  ASSERT_OK(bins);
  const RowBinsView v = bins->view();
  for (int of_class = 0; of_class < kSingleRowClasses; ++of_class) {
    SCOPED_TRACE(of_class);
    const int32_t* const array = v.lists + of_class / 2 * kRows;
    EXPECT_EQ(v.RowAt(of_class, 0), of_class % 2 == 0 ? array : array + kRows - 1);
    EXPECT_EQ(v.RowAt(of_class, kRows - 1), of_class % 2 == 0 ? array + kRows - 1 : array);
  }
  EXPECT_EQ(v.GroupAt(kGroup6144, 0), v.groups[0]);
  EXPECT_EQ(v.GroupAt(kGroup10240, 0), v.groups[0] + kRows / 2 - 1);
  EXPECT_EQ(v.GroupAt(kGroupLargest, 7), v.groups[1] + 7);
}

TEST_F(CudaPlanTest, RowBinsTakeTheirLengthsFromTheCounters) {
  Counters counters = {};
  for (int c = 0; c < kValueClasses; ++c) counters.value_rows[c] = 10 + c;
  counters.pattern_rows[kTiny] = 5;
  RowBins bins;
  bins.SetLengths(counters);
  EXPECT_EQ(bins.lengths[kSplit], 10u + kSplit);
  EXPECT_EQ(bins.tiny_rows, 5u);
  EXPECT_EQ(bins.MergedRows(), 5);
  EXPECT_EQ(bins.GroupedRows(), kGroupRows * (30 + kGroup6144 + kGroup10240 + kGroupLargest));
}

TEST_F(CudaPlanTest, RowPiecesLieOneAfterAnother) {
  RowPieces pieces;
  EXPECT_EQ(pieces.view().lengths, nullptr);
  pieces.capacity = {7, 3};
  pieces.memory = Memory(RowPieces::Bytes(pieces.capacity));
  const RowPiecesView v = pieces.view();
  EXPECT_EQ(v.lengths, pieces.memory.as<unsigned>());
  EXPECT_EQ(reinterpret_cast<char*>(v.lists[0]), pieces.memory.as<char>() + Arena::kAlignment);
  EXPECT_EQ(v.lists[1], v.lists[0] + 7);
  EXPECT_EQ(reinterpret_cast<char*>(v.lists[1] + 3), pieces.memory.as<char>() + pieces.bytes());
}

TEST_F(CudaPlanTest, ATransposeDividesItsMemory) {
  const ConstPatternView m = {5, 300, 1234, nullptr, nullptr};
  Transpose t;
  t.rows = m.columns;
  t.columns = m.rows;
  t.entries = m.entries;
  t.memory = Memory(Transpose::Bytes(m));
  const TransposeView v = t.view();
  ExpectDivided(t.memory, {RangeOf(v.offsets, 301), RangeOf(v.indices, 1234), RangeOf(v.positions, 1234)});
  const ConstPatternView pattern = t.pattern();
  EXPECT_EQ(pattern.rows, 300);
  EXPECT_EQ(pattern.columns, 5);
  EXPECT_EQ(pattern.entries, 1234);
  EXPECT_EQ(pattern.row_offsets, v.offsets);
  EXPECT_EQ(pattern.column_indices, v.indices);
}

TEST_F(CudaPlanTest, MaskAddDividesItsMemory) {
  MultiplyOptions options;
  EXPECT_FALSE(NeedsMaskAdd(options));
  options.addend = ConstCsrView{{3, 4, 77, nullptr, nullptr}};
  EXPECT_TRUE(NeedsMaskAdd(options));
  MaskAdd part;
  part.product = {3, 4, 100, Memory(4 * sizeof(int64_t)), Memory(100 * sizeof(int32_t))};
  part.places = Memory(MaskAdd::PlacesBytes(100, options));
  const MaskAddView v = part.view();
  ExpectDivided(part.places, {RangeOf(v.of_product, 100), RangeOf(v.of_addend, 77)});
  EXPECT_EQ(part.bytes(), part.product.bytes() + static_cast<int64_t>(part.places.bytes()));
}

TEST_F(CudaPlanTest, OnlyAComplementMaskNeedsTheWholeProduct) {
  MultiplyOptions options;
  EXPECT_FALSE(IsMasked(options));
  options.mask = ConstPatternView{};
  EXPECT_TRUE(IsMasked(options));
  EXPECT_FALSE(NeedsMaskAdd(options));
  options.complement_mask = true;
  EXPECT_FALSE(IsMasked(options));
  EXPECT_TRUE(NeedsMaskAdd(options));
}

// Pieces of a warp and of a block share an array, from its two ends.
TEST_F(CudaPlanTest, MaskedPiecesMeetInTheMiddle) {
  MaskedPieces pieces;
  pieces.capacity = 10;
  pieces.memory = Memory(MaskedPieces::Bytes(10));
  const MaskedPiecesView v = pieces.view();
  ExpectDivided(pieces.memory, {RangeOf(v.lengths, 2), RangeOf(v.array, 10)});
  EXPECT_EQ(&v.At(false, 0), v.array);
  EXPECT_EQ(&v.At(false, 9), v.array + 9);
  EXPECT_EQ(&v.At(true, 0), v.array + 9);
  EXPECT_EQ(&v.At(true, 9), v.array);
}

// Rows that are cut into the most pieces: single entries, and entries that fill a piece and begin another.
TEST_F(CudaPlanTest, TheCapacityOfMaskedPiecesIsEnough) {
  EXPECT_EQ(MaskedPieces::CapacityFor(100, 0), 0);
  EXPECT_EQ(MaskedPieces::CapacityFor(100, 7), 7);
  EXPECT_GE(MaskedPieces::CapacityFor(100, 100), 100);
  EXPECT_GE(MaskedPieces::CapacityFor(1, 1), 1);
  for (int64_t pieces : {1, 2, 5}) {
    EXPECT_GE(MaskedPieces::CapacityFor(1, pieces * kWarpPiece + 1), pieces + 1);
    EXPECT_GE(MaskedPieces::CapacityFor(9, 9 * (pieces * kWarpPiece + 1)), 9 * (pieces + 1));
  }
  EXPECT_GE(MaskedPieces::CapacityFor(INT32_MAX, int64_t{1} << 40),
            int64_t{INT32_MAX} + (int64_t{1} << 40) / kWarpPiece);
}

TEST_F(CudaPlanTest, TilesDivideTheirMemory) {
  const HostCsr<double> host_a = RandomMatrix(50, 61, 0.5, 1), host_b = RandomMatrix(61, 40, 0.5, 2);
  const ConstPatternView a = host_a.view(), b = host_b.view();
  for (bool forced : {false, true}) {
    SCOPED_TRACE(forced);
    auto plan = TilePlan::Allocate(ctx_, a, b, forced);
    ASSERT_OK(plan);
    EXPECT_FALSE(plan->square);
    EXPECT_EQ(plan->bytes(), TilePlan::MatrixBytes(a, forced) + TilePlan::MatrixBytes(b, forced));
    const TileOperands o = plan->Operands(a, b, nullptr);
    std::vector<Range> arrays;
    for (const auto& [t, rows] : {std::pair(o.a_tiles, a.rows), std::pair(o.b_tiles, b.rows)}) {
      const int64_t tile_rows = (rows + 7) / 8;
      for (const Range& array :
           {RangeOf(t.bits, t.capacity), RangeOf(t.columns, t.capacity), RangeOf(t.starts, 8 * t.capacity),
            RangeOf(t.begins, tile_rows), RangeOf(t.counts, tile_rows)}) {
        arrays.push_back(array);
      }
    }
    ExpectDivided(plan->operand_memory, arrays);
    plan->product_tiles = 30;
    plan->product_memory = Memory(TilePlan::ProductBytes(30, 90));
    const ProductTiles product = plan->Product();
    ExpectDivided(plan->product_memory, {RangeOf(product.tiles, 30), RangeOf(product.pairs, 90)});
  }
}

TEST_F(CudaPlanTest, TilesOfASquareAreMadeOnce) {
  const HostCsr<double> host = RandomMatrix(50, 50, 0.5, 1);
  const ConstPatternView m = host.view();
  const auto plan = TilePlan::Allocate(ctx_, m, m, false);
  ASSERT_OK(plan);
  EXPECT_TRUE(plan->square);
  EXPECT_EQ(plan->bytes(), TilePlan::MatrixBytes(m, false));
  const TileOperands o = plan->Operands(m, m, nullptr);
  EXPECT_EQ(o.a_tiles.bits, o.b_tiles.bits);
}

TEST_F(CudaPlanTest, BytesAreTheSumOfTheParts) {
  Plan plan({}, Executions::kAnyNumber);
  EXPECT_EQ(plan.bytes(), 0);
  int64_t bytes = 0;
  const auto give = [&](Buffer& part, int64_t size) {
    part = Memory(size);
    bytes += size;
    EXPECT_EQ(plan.bytes(), bytes);
  };
  give(plan.transpose.memory, 1);
  give(plan.row_bins.memory, 20);
  give(plan.row_pieces.memory, 300);
  give(plan.tiles.operand_memory, 4000);
  give(plan.tiles.product_memory, 5001);
  give(plan.reuse.pairs, 6002);
  give(plan.reuse.starts, 703);
  give(plan.reuse.bases, 84);
  give(plan.masked.memory, 90);
  give(plan.selection.whole.row_offsets, 91);
  give(plan.selection.whole.column_indices, 92);
  give(plan.selection.places, 93);
  give(plan.mask_add.product.row_offsets, 95);
  give(plan.mask_add.product.column_indices, 106);
  give(plan.mask_add.places, 117);
}

TEST_F(CudaPlanTest, OnlyAPlanForOneExecutionDefersColumns) {
  MultiplyOptions masked;
  masked.mask = ConstPatternView{};
  EXPECT_TRUE(Plan({}, Executions::kOnce).DefersColumns());
  EXPECT_FALSE(Plan({}, Executions::kAnyNumber).DefersColumns());
  EXPECT_FALSE(Plan(masked, Executions::kOnce).DefersColumns());
}

// The judgement knows only sizes: the columns of C, and the mean number of multiplications of a row, if the rows of B
// are alike.
TEST_F(CudaPlanTest, ShortRowsAreLikelyWhereRowsHaveFewEntriesFarApart) {
  const auto likely = [](int32_t rows, int64_t entries, int32_t inner, int64_t entries_of_b, int32_t columns,
                         const MultiplyOptions& options = {}) {
    const ConstPatternView a = {rows, inner, entries, nullptr, nullptr};
    const ConstPatternView b = {inner, columns, entries_of_b, nullptr, nullptr};
    return ShortRowsAreLikely(a, b, options);
  };
  EXPECT_TRUE(likely(62586, 147892, 62586, 147892, 62586));
  EXPECT_TRUE(likely(1000, 4000, 1000, 4000, 40961));
  EXPECT_FALSE(likely(1000, 4000, 1000, 4000, 40960));
  EXPECT_TRUE(likely(1000, 8000, 1000, 4000, 50000));
  EXPECT_FALSE(likely(1000, 8001, 1000, 4000, 50000));
  EXPECT_FALSE(likely(0, 0, 1000, 4000, 50000));
  EXPECT_FALSE(likely(1000, 0, 0, 0, 50000));
  // A path may say who makes the short rows.
  MultiplyOptions forced;
  for (MultiplyPath path : {MultiplyPath::kLongRows, MultiplyPath::kBitmaps, MultiplyPath::kTables}) {
    forced.path = path;
    EXPECT_FALSE(likely(62586, 147892, 62586, 147892, 62586, forced));
  }
  forced.path = MultiplyPath::kShortRows;
  EXPECT_TRUE(likely(1000, 800000, 1000, 800000, 1000, forced));
  EXPECT_FALSE(likely(0, 0, 1000, 4000, 50000, forced));
  // Where all rows may go by tiles, none is looked at.
  MultiplyOptions tiles;
  tiles.path = MultiplyPath::kTiles;
  EXPECT_FALSE(likely(1000, 4000, 1000, 4000, 50000, tiles));
}

TEST_F(CudaPlanTest, TheScansOfAllBlocksFollowTheCounters) {
  for (int64_t rows : {1, 8, 9, 8192, 8193, 62586, 262144, 1000001, INT32_MAX}) {
    SCOPED_TRACE(rows);
    const int of_block = ShortRowsOfBlock(rows);
    EXPECT_TRUE(of_block >= kWarps && of_block <= kThreads) << of_block;
    EXPECT_GE(ShortBlocks(rows) * of_block, rows);
    EXPECT_LT((ShortBlocks(rows) - 1) * of_block, rows);
    EXPECT_EQ(CountersBytes(rows) - static_cast<int64_t>(sizeof(Counters)), 8 * (BinBlocks(rows) + ShortBlocks(rows)));
  }
  EXPECT_EQ(ShortRowsOfBlock(8192), 8);
  EXPECT_EQ(ShortRowsOfBlock(62586), 64);
}

ConstPatternView OfEntries(int64_t entries) { return {INT32_MAX, INT32_MAX, entries, nullptr, nullptr}; }

TEST_F(CudaPlanTest, OperandsBeyondAGridAreRefusedWithTheNumbers) {
  const ConstPatternView fits = OfEntries(kMostEntries), beyond = OfEntries(kMostEntries + 1);
  MultiplyOptions options;
  options.mask = fits;
  options.addend = ConstCsrView{fits};
  EXPECT_OK(CheckOperands(fits, fits, options));
  const auto expect_refusal = [&](const char* operand, const ConstPatternView& a, const ConstPatternView& b,
                                  const MultiplyOptions& options) {
    CountingDevice counting(device_);
    const ExecContext own(counting, ctx_.stream(), ctx_.arena());
    for (const absl::Status& s : {CheckOperands(a, b, options), cuda::EstimateMultiply(own, a, b, options).status(),
                                  cuda::PlanMultiply(own, a, b, options, Executions::kAnyNumber).status()}) {
      EXPECT_EQ(s.code(), absl::StatusCode::kOutOfRange) << s;
      EXPECT_EQ(FieldOf(s), operand);
      EXPECT_THAT(s.message(), AllOf(HasSubstr("549755813633 entries"), HasSubstr("549755813632 at most")));
    }
    EXPECT_EQ(counting.allocated_bytes(), 0);
  };
  expect_refusal("a", beyond, fits, options);
  expect_refusal("b", fits, beyond, options);
  MultiplyOptions with_mask = options, with_addend = options;
  with_mask.mask = beyond;
  with_addend.addend = ConstCsrView{beyond};
  expect_refusal("mask", fits, fits, with_mask);
  expect_refusal("addend", fits, fits, with_addend);
  EXPECT_OK(CheckProduct(kMostEntries));
  EXPECT_EQ(CheckProduct(kMostEntries + 1).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(CudaPlanTest, ATransposeBeyond31BitsIsRefusedBeforeMemoryIsTaken) {
  EXPECT_OK(CheckTranspose(OfEntries(INT32_MAX)));
  const ConstPatternView m = OfEntries(int64_t{INT32_MAX} + 1);
  CountingDevice counting(device_);
  const ExecContext own(counting, ctx_.stream(), ctx_.arena());
  MultiplyOptions options;
  options.transpose_a = true;
  for (const absl::Status& s : {MakeTranspose(own, m).status(), cuda::EstimateMultiply(own, m, m, options).status()}) {
    EXPECT_EQ(s.code(), absl::StatusCode::kUnimplemented) << s;
    EXPECT_EQ(FieldOf(s), "transpose_a");
    EXPECT_THAT(s.message(), AllOf(HasSubstr("2147483648 entries"), HasSubstr("2147483647 at most")));
  }
  EXPECT_EQ(counting.allocated_bytes(), 0);
}

// The pairs of a reuse plan are indices of 32 bits.
TEST_F(CudaPlanTest, AReusePlanOfMoreThan32BitsIsRefused) {
  EXPECT_TRUE(ReusePlanFits(UINT32_MAX, UINT32_MAX, kMaxReuseMultiplications));
  EXPECT_FALSE(ReusePlanFits(int64_t{UINT32_MAX} + 1, 1, 1));
  EXPECT_FALSE(ReusePlanFits(1, int64_t{UINT32_MAX} + 1, 1));
  EXPECT_FALSE(ReusePlanFits(1, 1, kMaxReuseMultiplications + 1));
  CountingDevice counting(device_);
  const ExecContext own(counting, ctx_.stream(), ctx_.arena());
  const absl::Status s =
      MakeReusePlan(own, OfEntries(5), OfEntries(int64_t{1} << 32), OfEntries(7), kMaxReuseMultiplications).status();
  EXPECT_EQ(s.code(), absl::StatusCode::kInvalidArgument) << s;
  EXPECT_THAT(s.message(), HasSubstr("5 and 4294967296 entries"));
  EXPECT_EQ(counting.allocated_bytes(), 0);
}

// 131,073 rows over all columns, with an entry in each window of a piece, would have more pieces than 32 bits count.
TEST_F(CudaPlanTest, MorePiecesOfLongRowsThanAListTakesAreRefused) {
  constexpr int64_t kRows = 131073, kInARow = 32785;
  EXPECT_EQ(RowPieces::CapacityFor(0, INT32_MAX, 100, ValueType::kFloat32), 0);
  // A piece has an entry.
  EXPECT_EQ(RowPieces::CapacityFor(kRows, INT32_MAX, kRows * 2000, ValueType::kFloat32), kRows * 2000);
  EXPECT_GE(RowPieces::CapacityFor(kRows, INT32_MAX, kRows * 100000, ValueType::kFloat32), kRows * kInARow);
  EXPECT_GE(RowPieces::CapacityFor(INT32_MAX, INT32_MAX, MultiplyEstimate::kMostCounted, ValueType::kFloat64),
            INT32_MAX * kInARow);
  RowBins bins;
  bins.lengths[kSplit] = kRows;
  CountingDevice counting(device_);
  const ExecContext own(counting, ctx_.stream(), ctx_.arena());
  const absl::Status s = CutRows(own, bins, OfEntries(kRows * kInARow), ValueType::kFloat32).status();
  EXPECT_EQ(s.code(), absl::StatusCode::kResourceExhausted) << s;
  EXPECT_THAT(s.message(), AllOf(HasSubstr("4297228305 pieces"), HasSubstr("2147483647")));
  EXPECT_EQ(counting.allocated_bytes(), 0);
}

// Sums of bytes of the largest counts that an estimate gives.
TEST_F(CudaPlanTest, BytesOfTheLargestCountsDoNotWrap) {
  constexpr int64_t kMost = MultiplyEstimate::kMostCounted, kRows = INT32_MAX;
  const ConstPatternView m = OfEntries(kMostEntries);
  MultiplyOptions options;
  EXPECT_EQ(MaskAdd::PlacesBytes(kMost, options), 8 * kMost);
  EXPECT_GT(RowBins::Bytes(INT32_MAX), RowBinsView::kLists * 4 * kRows);
  EXPECT_GT(PatternWorkspaceBytes(INT32_MAX), 26 * kRows);
  EXPECT_GT(RowPieces::MostBytes(m, m, kMost, kMost, ValueType::kFloat64, Accumulators::kBySize), kRows * 32785 * 12);
  EXPECT_LT(RowPieces::MostBytes(m, m, kMost, kMost, ValueType::kFloat64, Accumulators::kBySize), 2 * 12 * kMost);
  EXPECT_GT(MaskedPieces::Bytes(MaskedPieces::CapacityFor(kRows, kMost)), kMost / kWarpPiece * 12);
  EXPECT_GE(TilePlan::ProductBytes(kMost, kMost), kMost * static_cast<int64_t>(sizeof(ProductTile) + sizeof(TilePair)));
  EXPECT_GT(ReusePlan::MostBytes(kMaxReuseMultiplications, kMaxReuseEntries, kMaxReuseMultiplications),
            24 * kMaxReuseMultiplications + 4 * kMaxReuseEntries);
}

}  // namespace
}  // namespace intrawarp::cuda::spgemm
