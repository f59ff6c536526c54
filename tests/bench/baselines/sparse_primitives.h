// SPDX-License-Identifier: Apache-2.0
// Parallel primitives of Zachariadis (2020), chapter 3 (there Thrust's): scans, sorts, runs, compaction. Device
// pointers; the work is in the order of the context's stream, and a function that returns a count waits for it. At most
// 2^31 - 1 items, RESOURCE_EXHAUSTED above.
#ifndef INTRAWARP_TESTS_BENCH_BASELINES_SPARSE_PRIMITIVES_H_
#define INTRAWARP_TESTS_BENCH_BASELINES_SPARSE_PRIMITIVES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/sparse/csr.h"

namespace intrawarp::baselines::cuda {

// An 8x8 tile of a matrix; bit 8 r + c of the bitmap is the element of row r and column c. Elements lie together, in
// the order of their bits, from `index`.
struct Tile {
  uint64_t bitmap;
  int64_t index;
  int32_t row, column;  // in tiles
};

absl::Status CheckCount(int64_t count);

template <typename T>
absl::StatusOr<Buffer> AllocateItems(const ExecContext& ctx, int64_t count) {
  return ctx.device().Allocate(count * sizeof(T), ctx.stream());
}

// offsets[0] = 0, offsets[i + 1] = offsets[i] + lengths[i].
absl::Status SumLengths(const ExecContext& ctx, const int32_t* lengths, int64_t count, int64_t* offsets);

// One value from the device.
absl::StatusOr<int64_t> ReadBack(const ExecContext& ctx, const int64_t* value);

// For each of offsets[count] = total items, the i with offsets[i] <= item < offsets[i + 1], int32: scattered heads and
// a scan for the maximum, as CUSP does it.
absl::StatusOr<Buffer> OwnersOf(const ExecContext& ctx, const int64_t* offsets, int64_t count, int64_t total);

// Sorts by the low `bits` bits of the keys, stable. The other half of a buffer is free afterwards.
template <typename Value>
struct Pairs {
  Buffer keys[2];  // uint64_t
  Buffer values[2];
  int current = 0;
  uint64_t* key() const { return keys[current].as<uint64_t>(); }
  Value* value() const { return values[current].as<Value>(); }
  uint64_t* free_key() const { return keys[1 - current].as<uint64_t>(); }
  Value* free_value() const { return values[1 - current].as<Value>(); }
};
template <typename Value>  // float or uint64_t
absl::StatusOr<Pairs<Value>> AllocatePairs(const ExecContext& ctx, int64_t count);
template <typename Value>
absl::Status SortPairs(const ExecContext& ctx, Pairs<Value>& pairs, int64_t count, int bits);

// Bits that hold every number below `limit`.
int BitsBelow(uint64_t limit);

// Runs of equal key >> shift: the shifted keys and the lengths of their runs.
absl::StatusOr<int64_t> RunLengths(const ExecContext& ctx, const uint64_t* keys, int shift, int64_t count,
                                   uint64_t* unique, int32_t* lengths);
// Sums over runs of equal keys.
absl::StatusOr<int64_t> SumRuns(const ExecContext& ctx, const uint64_t* keys, const float* values, int64_t count,
                                uint64_t* unique, float* sums);
// Keeps values that are not 0, and tiles whose bitmap is not 0.
absl::StatusOr<int64_t> RemoveZeros(const ExecContext& ctx, const float* values, int64_t count, float* kept);
absl::StatusOr<int64_t> RemoveEmpty(const ExecContext& ctx, const Tile* tiles, int64_t count, Tile* kept);

// The row of every entry, int32 (CSR to COO).
absl::StatusOr<Buffer> RowsOfEntries(const ExecContext& ctx, const ConstPatternView& m);

}  // namespace intrawarp::baselines::cuda

#endif  // INTRAWARP_TESTS_BENCH_BASELINES_SPARSE_PRIMITIVES_H_
