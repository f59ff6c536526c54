// SPDX-License-Identifier: Apache-2.0
// Bins the rows of the scalar path by the kernel that will compute their values. Internal to engine/sparse/cuda.
#ifndef INTRAWARP_ENGINE_SPARSE_CUDA_ROW_BINS_H_
#define INTRAWARP_ENGINE_SPARSE_CUDA_ROW_BINS_H_

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/host_device.h"
#include "engine/device/device.h"
#include "engine/device/exec_context.h"
#include "engine/sparse/cuda/counters.h"
#include "engine/sparse/cuda/row_classes.h"

namespace intrawarp::cuda::spgemm {

// The arrays of RowBins, for kernels. Each list array holds the rows of two value classes, one from its front and one
// from its back, since a row is in one list at most.
struct RowBinsView {
  static constexpr int kLists = (kSingleRowClasses + 1) / 2;
  int32_t* lists;  // kLists arrays of `rows`
  int32_t rows;
  RowGroup* groups[2];  // groups of two rows and more: arrays of rows / 2
  uint8_t* kinds;       // of each row; see PatternClass

  INTRAWARP_HD int32_t* RowAt(int of_class, unsigned place) const {
    return lists + of_class / 2 * int64_t{rows} + (of_class % 2 == 0 ? int64_t{place} : int64_t{rows} - 1 - place);
  }
  INTRAWARP_HD RowGroup* GroupAt(int of_class, unsigned place) const {
    if (of_class == kGroupLargest) return groups[1] + place;
    return groups[0] + (of_class == kGroup6144 ? int64_t{place} : int64_t{rows / 2} - 1 - place);
  }
};

// The part of a plan that says which kernel computes which rows. Read-only once the lengths are set.
struct RowBins {
  Buffer memory;
  int32_t rows = 0;
  std::array<unsigned, kValueClasses> lengths = {};  // rows, or groups, of each value class
  unsigned tiny_rows = 0;                            // rows of class kTiny, which are in no list

  static int64_t Bytes(int32_t rows);
  // Memory for so many rows; the contents are undefined.
  static absl::StatusOr<RowBins> Allocate(const ExecContext& ctx, int32_t rows);
  void SetLengths(const Counters& counters);
  RowBinsView view() const;
  int64_t bytes() const { return static_cast<int64_t>(memory.bytes()); }
  // Rows that a thread merges, and an upper bound on those that are computed together because they share a pattern.
  int64_t MergedRows() const { return tiny_rows; }
  int64_t GroupedRows() const;
};

// Makes the offsets of C out of the number of entries in each row, which `offsets` holds on entry, or `counts` for
// tiny, short and empty rows where CountShortRows has counted them (otherwise null). Sets counters->entries, and fills
// the lists of the bins and their lengths from the kinds and extents of the rows. `counters` is followed by the scan
// states (CountersBytes in all), zeroed by the caller. Also writes the counters to `on_host`, which is page-locked
// memory. Does not wait.
absl::Status BinRows(const ExecContext& ctx, const RowBinsView& bins, const RowExtent* extents, const uint16_t* counts,
                     ValueType type, Accumulators accumulators, Counters* counters, int64_t* offsets,
                     HostCounters* on_host);

}  // namespace intrawarp::cuda::spgemm

#endif  // INTRAWARP_ENGINE_SPARSE_CUDA_ROW_BINS_H_
