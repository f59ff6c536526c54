// SPDX-License-Identifier: Apache-2.0
// From the frames of many files to volumes: grouping, splitting phases, ordering, and the grid that the positions make.
// Knows no DCMTK. Thread-safe functions.
#ifndef INTRAWARP_IO_DICOM_STACK_H_
#define INTRAWARP_IO_DICOM_STACK_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/geometry/geometry.h"
#include "io/dicom/instance.h"

namespace intrawarp::io::dicom {

// Frames closer than this along the normal are at one position.
inline constexpr double kSamePositionMm = 1e-3;
// A slice may lie so far off its even place, or this fraction of the spacing.
inline constexpr double kUnevenMm = 0.01;
inline constexpr double kUnevenFraction = 0.01;
// How far the slices of a stack may drift sideways from its normal, in pixels over the whole stack.
inline constexpr double kTiltPixels = 0.1;

struct FrameIndex {
  size_t instance = 0;
  size_t frame = 0;
};

// Frames of one volume, by position along the normal. Frames at one position stand beside each other.
struct Stack {
  std::vector<FrameIndex> frames;
  // Frames of the group whose image has no plane: only one of them makes a volume.
  bool has_plane = true;
};

// The stacks that the instances with an OK status make, in an order that depends on contents alone. RESOURCE_EXHAUSTED
// "series: ..." above `max_volumes`.
absl::StatusOr<std::vector<Stack>> MakeStacks(const std::vector<Instance>& instances, int max_volumes);

// The grid of a stack that holds one frame for each position.
struct Grid {
  Geometry geometry;
  // Interpolation is needed: `slices` are then not the planes of `geometry`.
  bool resample = false;
  // For each frame of the stack: its coordinate along the normal from the first one, and how far its first pixel lies
  // from the line through the first pixel of the first frame along the normal, in pixels along a row and along a
  // column.
  struct Slice {
    double along = 0;
    double shift_x = 0, shift_y = 0;
  };
  std::vector<Slice> slices;
  // For each frame of the stack, its plane in `geometry` where nothing is interpolated; other planes are 0.
  std::vector<int> planes;
  std::vector<std::string> notes;
};

// Missing planes of a segmentation are empty. INVALID_ARGUMENT "slices: ..." for missing or uneven slices and "slices:
// ... tilt ..." for sheared ones, unless `resample`; "position: ..." for frames without a plane.
absl::StatusOr<Grid> GridOf(const std::vector<Instance>& instances, const Stack& stack, bool resample);

// Groups of frames at one position, as [begin, end) in `stack.frames`; those with one frame alone are left out.
std::vector<std::pair<size_t, size_t>> RepeatedPositions(const std::vector<Instance>& instances, const Stack& stack);

}  // namespace intrawarp::io::dicom

#endif  // INTRAWARP_IO_DICOM_STACK_H_
