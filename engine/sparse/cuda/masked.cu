// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/device/warp.cuh"
#include "engine/sparse/cuda/adder.cuh"
#include "engine/sparse/cuda/launcher.cuh"
#include "engine/sparse/cuda/marks.h"
#include "engine/sparse/cuda/masked.h"
#include "engine/sparse/cuda/products.cuh"
#include "engine/sparse/cuda/row_lists.cuh"
#include "engine/sparse/cuda/search.cuh"
#include "engine/sparse/cuda/semirings.cuh"

namespace intrawarp::cuda::spgemm {
namespace {

// The pieces begin here in their memory, behind the lengths.
constexpr size_t kPiecesAt = Arena::kAlignment;

MaskedPiecesView ViewOf(char* memory, int64_t capacity) {
  return {reinterpret_cast<unsigned*>(memory), reinterpret_cast<RowPiece*>(memory + kPiecesAt), capacity};
}

// The number of pieces of a block: its rows have kHeavyEntries of A or more.
int64_t BlockCapacity(const ConstPatternView& a, int64_t capacity, int64_t entries) {
  return std::min(capacity, a.entries / kHeavyEntries + entries / kBlockPiece);
}

// A thread cuts a row of `c`. Rows whose row of A is empty have no pieces.
__global__ void CutKernel(ConstPatternView a, ConstPatternView c, MaskedPiecesView pieces) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t of_a = row < c.rows ? a.row_offsets[row + 1] - a.row_offsets[row] : 0;
  const int64_t entries = of_a > 0 ? c.row_offsets[row + 1] - c.row_offsets[row] : 0;
  const bool of_block = of_a >= kHeavyEntries;
  const int most = of_block ? kBlockPiece : kWarpPiece;
  const auto count = static_cast<unsigned>((entries + most - 1) / most);
  unsigned place = ReservePlaces<2>(count == 0 ? -1 : of_block ? 1 : 0, count, pieces.lengths);
  for (int64_t skipped = 0; skipped < entries; skipped += most) {
    pieces.At(of_block, place++) = {static_cast<int32_t>(row), static_cast<int32_t>(skipped),
                                    static_cast<int32_t>(min(entries - skipped, int64_t{most}))};
  }
}

// A team, of kTeam threads, computes a piece: a warp, or a block.
template <int kTeam>
struct Team {
  static constexpr int kWarpsOfTeam = kTeam / 32;
  static constexpr int kEntries = kTeam == 32 ? kWarpPiece : kBlockPiece;
  static constexpr int kTeams = kTeam == 32 ? 4 : 1;  // of a block
  static constexpr int kBlock = kTeams * kTeam;

  static __device__ int Thread() { return threadIdx.x % kTeam; }
  static __device__ void Sync() {
    if constexpr (kTeam == 32) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }
};
static_assert(kWarpPiece % 32 == 0 && kBlockPiece % 32 == 0 && Team<kThreads>::kBlock == kThreads);

// A piece of a row of `c`, and the row of A.
struct Piece {
  const int32_t* columns;
  int count;
  int64_t begin;  // the first entry in `c`
  int64_t a_begin, a_end;

  __device__ Piece(const ConstPatternView& a, const ConstPatternView& c, const RowPiece& piece)
      : count(piece.count),
        begin(c.row_offsets[piece.row] + piece.skipped),
        a_begin(a.row_offsets[piece.row]),
        a_end(a.row_offsets[piece.row + 1]) {
    columns = c.column_indices + begin;
  }
  // Narrows a row of B to the columns of the piece.
  __device__ void Narrow(const ConstPatternView& b, RowOfB* row) const {
    LowerBounds(b.column_indices, columns[0], columns[count - 1] + 1, &row->from, &row->to);
  }
  // Whether it is faster to search the columns of the piece in a row of B than to look up the row's columns.
  __device__ bool IsSearched(const RowOfB& row) const {
    const int64_t length = row.to - row.from;
    return length > int64_t{kSearchCost} * count * (64 - __clzll(length));
  }
};

// Calls use(place, entry of B) for the columns of the piece that row b_k, narrowed by lane `of`, has. All lanes of the
// warp call it.
template <typename Use>
__device__ void SearchRow(const Piece& piece, const ConstPatternView& b, const RowOfB& row, int of, const Use& use) {
  const int64_t from = __shfl_sync(kAllLanes, row.from, of), to = __shfl_sync(kAllLanes, row.to, of);
  for (int r = threadIdx.x % 32; r < piece.count; r += 32) {
    const int32_t column = piece.columns[r];
    const int64_t at = LowerBound(b.column_indices, from, to, column);
    if (at < to && b.column_indices[at] == column) use(r, at);
  }
}

template <int kEntries>
struct TableMemory {
  int32_t columns[2 * kEntries];
  uint16_t places[2 * kEntries];
};

// Leads from a column of a piece to its place in it: a hash table, no more than half full.
struct PieceTable {
  int32_t* columns;  // -1: none
  uint16_t* places;
  int bits;  // of the number of slots

  __device__ PieceTable(int32_t* columns, uint16_t* places, int count) : columns(columns), places(places) {
    bits = 32 - __clz(2 * count - 1);
  }

  __device__ unsigned SlotOf(int32_t column) const {
    return (static_cast<uint32_t>(column) * 2654435761u) >> (32 - bits);
  }
  __device__ unsigned After(unsigned slot) const { return (slot + 1) & ((1u << bits) - 1); }

  // All threads of the team call it, then Insert after a barrier; another barrier follows.
  __device__ void Clear(int thread, int threads) const {
    for (int s = thread; s < 1 << bits; s += threads) columns[s] = -1;
  }
  __device__ void Insert(int thread, int threads, const Piece& piece) const {
    for (int r = thread; r < piece.count; r += threads) {
      const int32_t column = piece.columns[r];
      unsigned slot = SlotOf(column);
      while (atomicCAS(&columns[slot], -1, column) != -1) slot = After(slot);
      places[slot] = static_cast<uint16_t>(r);
    }
  }
  // The place of a column; -1 - lane, for Adder, where the piece does not have the column.
  __device__ int Find(int32_t column) const {
    for (unsigned slot = SlotOf(column);; slot = After(slot)) {
      const int32_t there = columns[slot];
      if (there == column) return places[slot];
      if (there == -1) return -1 - static_cast<int>(threadIdx.x % 32);
    }
  }
};

// Whether all places of a piece, 1024 at most, are marked. All lanes of the warp call it, and other warps may mark.
__device__ bool AllMarked(uint32_t* marks, int count) {
  static_assert(kWarpPiece <= 1024 && kBlockPiece <= 1024);
  const int word = threadIdx.x % 32, places = count - word * 32;
  const uint32_t all = places >= 32 ? kAllLanes : (1u << max(places, 0)) - 1;
  return __all_sync(kAllLanes, places <= 0 || atomicOr(&marks[word], 0u) == all);
}

// Marks the places of a piece that have a product, by the entries of A in groups of 32: every `step`-th group, from the
// `skip`-th on. A warp calls it.
__device__ void MarkProducts(const ConstPatternView& a, const ConstPatternView& b, const Piece& piece,
                             const PieceTable& table, int skip, int step, uint32_t* marks) {
  const int lane = threadIdx.x % 32;
  const auto mark = [marks](int place, int64_t) { atomicOr(&marks[place / 32], 1u << place % 32); };
  for (int64_t at = piece.a_begin + skip * 32; at < piece.a_end; at += step * 32) {
    if (AllMarked(marks, piece.count)) return;
    RowOfB row(a, b, at + lane, piece.a_end);
    piece.Narrow(b, &row);
    const bool is_searched = piece.IsSearched(row);
    ForProducts<2>(row.from, is_searched ? row.from : row.to, [&](const Products<2>& p) {
      int place[2] = {-1, -1};
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (p.at[h] >= 0) place[h] = table.Find(b.column_indices[p.at[h]]);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (place[h] >= 0) mark(place[h], 0);
      }
    });
    for (unsigned left = __ballot_sync(kAllLanes, is_searched); left != 0; left &= left - 1) {
      SearchRow(piece, b, row, __ffs(left) - 1, mark);
    }
  }
}

template <int kTeam>
struct MarkScratch {
  TableMemory<Team<kTeam>::kEntries> table;
  uint32_t marks[Team<kTeam>::kEntries / 32];
};

// Sets the bit of each entry of the mask that is an entry of C, in `bits`, which are 0 at first.
template <int kTeam>
__global__ void __launch_bounds__(Team<kTeam>::kBlock)
    MarkKernel(ConstPatternView a, ConstPatternView b, ConstPatternView mask, MaskedPiecesView pieces, uint32_t* bits) {
  using Of = Team<kTeam>;
  const OverlapNext overlap;
  __shared__ MarkScratch<kTeam> scratches[Of::kTeams];
  MarkScratch<kTeam>& scratch = scratches[threadIdx.x / kTeam];
  constexpr bool kOfBlock = kTeam > 32;
  const int thread = Of::Thread();
  const unsigned tasks = pieces.lengths[kOfBlock], teams = gridDim.x * Of::kTeams;
  for (unsigned t = blockIdx.x * Of::kTeams + threadIdx.x / kTeam; t < tasks; t += teams) {
    const Piece piece(a, mask, pieces.At(kOfBlock, t));
    const PieceTable table(scratch.table.columns, scratch.table.places, piece.count);
    const int words = (piece.count + 31) / 32;
    table.Clear(thread, kTeam);
    if (thread < words) scratch.marks[thread] = 0;
    Of::Sync();
    table.Insert(thread, kTeam, piece);
    Of::Sync();
    MarkProducts(a, b, piece, table, thread / 32, Of::kWarpsOfTeam, scratch.marks);
    Of::Sync();
    // The words of a piece straddle the words of the mask.
    if (thread < words) {
      const uint32_t marks = scratch.marks[thread];
      uint32_t* const word = bits + piece.begin / 32 + thread;
      const int shift = static_cast<int>(piece.begin % 32);
      const uint32_t low = marks << shift, high = shift == 0 ? 0 : marks >> (32 - shift);
      if (low != 0) atomicOr(word, low);
      if (high != 0) atomicOr(word + 1, high);
    }
    Of::Sync();
  }
}

// Adds the products of every `step`-th entry of A, from the `skip`-th on, to the sums of a piece. A warp calls it.
template <typename T, typename Ring>
__device__ void AddToPiece(const ConstCsrView& a, const ConstCsrView& b, const Piece& piece, const PieceTable& table,
                           int skip, int step, T* sums) {
  const int lane = threadIdx.x % 32;
  const T* const a_values = static_cast<const T*>(a.values);
  const T* const b_values = static_cast<const T*>(b.values);
  auto find = [table](int32_t column) { return table.Find(column); };
  const Adder<T, Ring, 1, decltype(find)> adder = {b.column_indices, b_values, find, piece.count, sums};
  const int64_t begin = piece.a_begin + skip;
  RowOfB next(a, b, begin + lane * step, piece.a_end);
  for (int64_t at = begin; at < piece.a_end; at += 32 * step) {
    const int64_t i = at + lane * step;
    RowOfB row = next;
    const T a_value[1] = {i < piece.a_end ? a_values[i] : T{}};
    next = RowOfB(a, b, i + 32 * step, piece.a_end);
    piece.Narrow(b, &row);
    const unsigned searched = __ballot_sync(kAllLanes, piece.IsSearched(row));
    // By ascending k: the rows of B that are walked, up to the next one that is searched, then that one.
    for (int done = 0; done < 32;) {
      const unsigned ahead = searched & (kAllLanes << done);
      const int stop = ahead == 0 ? 32 : __ffs(ahead) - 1;
      const bool is_walked = lane >= done && lane < stop;
      if (stop > done) adder.template Add<true>(row.from, is_walked ? row.to : row.from, a_value);
      if (stop < 32) {
        const T factor = __shfl_sync(kAllLanes, a_value[0], stop);
        SearchRow(piece, b, row, stop,
                  [&](int place, int64_t entry) { sums[place] = Ring::Add(sums[place], factor, b_values[entry]); });
        __syncwarp();
      }
      done = stop + 1;
    }
  }
}

template <typename T, int kTeam>
struct ValueScratch {
  T sums[Team<kTeam>::kWarpsOfTeam * Team<kTeam>::kEntries];
  TableMemory<Team<kTeam>::kEntries> table;
};

template <typename T, typename Ring, int kTeam>
__global__ void __launch_bounds__(Team<kTeam>::kBlock)
    ValuesKernel(ConstCsrView a, ConstCsrView b, ConstPatternView c, MaskedPiecesView pieces, T alpha, T* values) {
  using Of = Team<kTeam>;
  const OverlapNext overlap;
  __shared__ ValueScratch<T, kTeam> scratches[Of::kTeams];
  ValueScratch<T, kTeam>& scratch = scratches[threadIdx.x / kTeam];
  constexpr bool kOfBlock = kTeam > 32;
  const int thread = Of::Thread(), warp = thread / 32;
  const unsigned tasks = pieces.lengths[kOfBlock], teams = gridDim.x * Of::kTeams;
  for (unsigned t = blockIdx.x * Of::kTeams + threadIdx.x / kTeam; t < tasks; t += teams) {
    const Piece piece(a, c, pieces.At(kOfBlock, t));
    const PieceTable table(scratch.table.columns, scratch.table.places, piece.count);
    table.Clear(thread, kTeam);
    for (int r = thread; r < Of::kWarpsOfTeam * piece.count; r += kTeam) scratch.sums[r] = Ring::Identity();
    Of::Sync();
    table.Insert(thread, kTeam, piece);
    Of::Sync();
    AddToPiece<T, Ring>(a, b, piece, table, warp, Of::kWarpsOfTeam, scratch.sums + warp * piece.count);
    Of::Sync();
    for (int r = thread; r < piece.count; r += kTeam) {
      T sum = scratch.sums[r];
      for (int w = 1; w < Of::kWarpsOfTeam; ++w) sum = Ring::Join(sum, scratch.sums[w * piece.count + r]);
      values[piece.begin + r] = alpha == T{1} ? sum : alpha * sum;
    }
    Of::Sync();
  }
}

template <typename T, typename Ring>
absl::Status LaunchValues(const ExecContext& ctx, const MaskedPieces& pieces, const ConstPatternView& c,
                          const ConstCsrView& a, const ConstCsrView& b, double alpha, T* values) {
  using OfBlock = Team<kThreads>;
  using OfWarp = Team<32>;
  Launcher launcher(ctx);
  const MaskedPiecesView view = pieces.view();
  INTRAWARP_RETURN_IF_ERROR(launcher.LaunchUneven(ValuesKernel<T, Ring, kThreads>, pieces.block_capacity,
                                                  OfBlock::kTeams, OfBlock::kBlock, 0, a, b, c, view,
                                                  static_cast<T>(alpha), values));
  return launcher.LaunchUneven(ValuesKernel<T, Ring, 32>, pieces.capacity, OfWarp::kTeams, OfWarp::kBlock, 0, a, b, c,
                               view, static_cast<T>(alpha), values);
}

template <typename T>
absl::Status ExecuteAs(const ExecContext& ctx, const MaskedPieces& pieces, const ConstPatternView& c,
                       const MultiplyOptions& options, const ConstCsrView& a, const ConstCsrView& b, T* values) {
  switch (options.semiring) {
    case Semiring::kPlusTimes:
      return LaunchValues<T, PlusTimes<T>>(ctx, pieces, c, a, b, options.alpha, values);
    case Semiring::kOrAnd:
      return LaunchValues<T, OrAnd<T>>(ctx, pieces, c, a, b, options.alpha, values);
    case Semiring::kMinPlus:
      return LaunchValues<T, MinPlus<T>>(ctx, pieces, c, a, b, options.alpha, values);
  }
  return absl::UnimplementedError("semiring: not on CUDA yet");
}

// Cuts the rows of `c` into pieces.
absl::Status Cut(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& c,
                 const MaskedPiecesView& pieces) {
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Fill(pieces.lengths, 0, kPiecesAt, ctx.stream()));
  CutKernel<<<BlocksFor(c.rows), kThreads, 0, CudaStream(ctx)>>>(a, c, pieces);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

// Marks the entries of the mask that are entries of C. The pieces of the mask are in the arena until the end.
absl::Status MarkEntries(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                         const ConstPatternView& mask, const Marks& marks) {
  ArenaScope scope(ctx.arena());
  const int64_t capacity = MaskedPieces::CapacityFor(mask.rows, mask.entries);
  INTRAWARP_ASSIGN_OR_RETURN(char* const memory, ctx.arena().Allocate<char>(MaskedPieces::Bytes(capacity)));
  const MaskedPiecesView pieces = ViewOf(memory, capacity);
  INTRAWARP_RETURN_IF_ERROR(Cut(ctx, a, mask, pieces));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Fill(marks.bits, 0, marks.words * sizeof(uint32_t), ctx.stream()));
  Launcher launcher(ctx);
  INTRAWARP_RETURN_IF_ERROR(launcher.LaunchUneven(MarkKernel<kThreads>, BlockCapacity(a, capacity, mask.entries),
                                                  Team<kThreads>::kTeams, Team<kThreads>::kBlock, 0, a, b, mask, pieces,
                                                  marks.bits));
  return launcher.LaunchUneven(MarkKernel<32>, capacity, Team<32>::kTeams, Team<32>::kBlock, 0, a, b, mask, pieces,
                               marks.bits);
}

}  // namespace

int64_t MaskedPieces::CapacityFor(int64_t rows, int64_t entries) {
  return std::min(rows, entries) + entries / kWarpPiece;
}

int64_t MaskedPieces::Bytes(int64_t capacity) { return kPiecesAt + capacity * sizeof(RowPiece); }

MaskedPiecesView MaskedPieces::view() const { return ViewOf(memory.as<char>(), capacity); }

absl::StatusOr<int64_t> MaskedWorkspaceBytes(const ConstPatternView& mask) {
  const int64_t pieces = MaskedPieces::Bytes(MaskedPieces::CapacityFor(mask.rows, mask.entries));
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t pattern, MarkedPatternBytes(mask.entries));
  return MarksBytes(mask.entries) + std::max(static_cast<int64_t>(Arena::Rounded(pieces)), pattern);
}

absl::StatusOr<CsrPattern> PlanMasked(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                                      const ConstPatternView& mask, MaskedPieces* pieces) {
  if (a.entries == 0 || b.entries == 0 || mask.entries == 0) return MakeEmptyPattern(ctx, a.rows, b.columns);
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(const Marks marks, AllocateMarks(ctx, mask));
  INTRAWARP_RETURN_IF_ERROR(MarkEntries(ctx, a, b, mask, marks));
  INTRAWARP_ASSIGN_OR_RETURN(CsrPattern c, MakeMarkedPattern(ctx, mask, marks));
  if (c.entries == 0) return c;
  pieces->capacity = MaskedPieces::CapacityFor(c.rows, c.entries);
  pieces->block_capacity = BlockCapacity(a, pieces->capacity, c.entries);
  INTRAWARP_ASSIGN_OR_RETURN(pieces->memory,
                             ctx.device().Allocate(MaskedPieces::Bytes(pieces->capacity), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(Cut(ctx, a, c.view(), pieces->view()));
  return c;
}

absl::Status ExecuteMasked(const ExecContext& ctx, const MaskedPieces& pieces, const ConstPatternView& c,
                           const MultiplyOptions& options, const ConstCsrView& a, const ConstCsrView& b, void* values) {
  if (a.type == ValueType::kFloat64) {
    return ExecuteAs(ctx, pieces, c, options, a, b, static_cast<double*>(values));
  }
  return ExecuteAs(ctx, pieces, c, options, a, b, static_cast<float*>(values));
}

}  // namespace intrawarp::cuda::spgemm
