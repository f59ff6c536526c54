// SPDX-License-Identifier: Apache-2.0
// Instance: the header of one DICOM file, as far as it is about its image: the layout of the stored pixels, and for
// each frame where it lies and how its values are rescaled. Holds no text of the file. Plain values.
#ifndef INTRAWARP_IO_DICOM_INSTANCE_H_
#define INTRAWARP_IO_DICOM_INSTANCE_H_

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/geometry/vec.h"
#include "io/dicom/dicom.h"

class DcmDataset;
class DcmItem;

namespace intrawarp::io::dicom {

enum class SampleKind { kInteger, kFloat32, kFloat64 };

// The attributes that CheckAgreement (agreement.h) looks for, as bits: an image has a value for each.
enum GivenAttribute : uint32_t {
  kGivenSlope = 1U << 0,
  kGivenIntercept = 1U << 1,
  kGivenBitsStored = 1U << 2,
  kGivenHighBit = 1U << 3,
  kGivenRepresentation = 1U << 4,
  kGivenPlane = 1U << 5,
  kGivenFrameOfReference = 1U << 6,
  kGivenModality = 1U << 7,
  kGivenKind = 1U << 8,
  kGivenEchoTime = 1U << 9,
};

struct PixelLayout {
  SampleKind kind = SampleKind::kInteger;
  int columns = 0;
  int rows = 0;
  int64_t frames = 1;  // stored frames; a mosaic has one
  int bits_allocated = 0;
  int bits_stored = 0;
  int high_bit = 0;
  bool is_signed = false;
  // Stored values in this range, ends included, are padding.
  std::optional<std::pair<int64_t, int64_t>> padding;
  friend bool operator==(const PixelLayout&, const PixelLayout&) = default;
};

inline Vec3d Cross(Vec3d a, Vec3d b) { return {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x}; }
inline double Norm(Vec3d v) { return std::sqrt(Dot(v, v)); }

inline constexpr double kAbsent = std::numeric_limits<double>::quiet_NaN();

struct Frame {
  int64_t stored = 0;  // index among the stored frames
  // GivenAttribute: those of the frame itself. The ones of its file are in Instance::given.
  uint32_t given = 0;
  // The part of the stored frame that this is; a whole frame but for mosaics.
  int left = 0, top = 0, columns = 0, rows = 0;
  bool has_plane = false;
  Vec3d position;     // of the centre of the first pixel, LPS mm
  Vec3d row_axis;     // unit vectors: along a row (increasing column),
  Vec3d column_axis;  // and along a column (increasing row)
  double spacing_x = 0, spacing_y = 0;
  double slope = 1, intercept = 0;
  // For a segmentation: the segment, from 1, and the distance of planes, of which empty ones may be left out.
  int segment = 0;
  double plane_step = kAbsent;
  // Frames that differ in these are never of one volume.
  std::string kind;  // hash of the kind of image
  double echo_time = kAbsent, b_value = kAbsent;
  // Frames that differ in these are of several volumes when they cover the same positions.
  double temporal = kAbsent, acquisition = kAbsent, trigger_time = kAbsent;
};

struct Instance {
  std::string path;
  DicomProvenance provenance;
  // OK, or why the image cannot be used; then only path and provenance count.
  absl::Status status;
  bool has_image = false;
  bool is_directory = false;  // a DICOMDIR
  bool is_mosaic = false;
  bool is_inverted = false;  // MONOCHROME1
  // GivenAttribute: those of the file.
  uint32_t given = 0;
  std::string sop_class;  // its hash
  // As those of DicomEntry.
  std::string sop_instance;
  absl::Status uids;
  // How many images the file says that its series has, at least; -1: it does not say.
  int64_t announced = -1;
  double thickness = kAbsent;
  PixelLayout layout;
  std::vector<Frame> frames;
  std::vector<std::string> notes;
};

// At most `max_frames` frames. Thread-safe for data sets that nobody changes.
Instance DescribeInstance(DcmDataset& dataset, int64_t max_frames);

// Only the plane of a frame: ImagePositionPatient and ImageOrientationPatient of the item itself, which must have both.
// Errors as those of Instance::status. Thread-safe.
absl::StatusOr<Frame> ReadPlane(DcmItem& item);

// The hash of a series' UID; empty for an empty one.
std::string HashOfSeries(absl::string_view uid);

// A defined term of Modality.
bool IsModality(absl::string_view term);

}  // namespace intrawarp::io::dicom

#endif  // INTRAWARP_IO_DICOM_INSTANCE_H_
