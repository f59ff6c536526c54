// SPDX-License-Identifier: Apache-2.0
// The samples of NRRD and MetaImage files: a run of bytes in a file, as it is or deflated, in either byte order.
//
// Files are taken for hostile. A plain run must have exactly the length asked for; memory for a deflated one grows with
// the bytes that have really come out and never beyond the length asked for. Errors: DATA_LOSS "data: ..." for
// truncated or corrupt runs, INVALID_ARGUMENT "data: ..." for runs that are too long, and io/file/file.h's "file: ...".
// Thread-safe functions.
#ifndef INTRAWARP_IO_FORMAT_SAMPLES_H_
#define INTRAWARP_IO_FORMAT_SAMPLES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/pixel_type.h"
#include "io/file/file.h"
#include "io/format/volume.h"

namespace intrawarp::io {

enum class Packing {
  kRaw,
  kGzip,  // the format of gzip; also read: zlib's
  kZlib,  // the format of zlib; also read: gzip's
};

// The place of the samples. The run goes from `offset` to the end of the file.
struct SampleSource {
  std::string path;
  int64_t offset = 0;
  Packing packing = Packing::kRaw;
  int64_t skip = 0;     // bytes before the samples, counted after unpacking
  bool at_end = false;  // raw alone: the samples are the last bytes, whatever lies before them
};

// The first bytes of a regular file, at most `max_bytes` of them; `*whole` says whether that is all of it.
absl::StatusOr<std::string> ReadHead(const std::string& path, int64_t max_bytes, bool* whole);

// The path of a file that a header names, which must be a plain name: it lies in the header's folder, and is not a
// link. INVALID_ARGUMENT "FIELD: ..." otherwise.
absl::StatusOr<std::string> DataFileBeside(const std::string& header, absl::string_view name, absl::string_view field);

// Whether the entry for the data file names several: "LIST", or a pattern with its range ("slice%03d.raw 1 9 1").
bool NamesSeveralFiles(absl::string_view name);

absl::StatusOr<std::vector<uint8_t>> ReadSamples(const SampleSource& source, int64_t bytes);

// Reverses the bytes of every sample.
void SwapSamples(PixelType type, std::vector<uint8_t>* samples);

// Vectors to displacements: `samples` are of `components` (2 or 3) float32 or float64 each, interleaved; each component
// is multiplied by `sign`'s. INVALID_ARGUMENT "displacement: ..." for one that is not finite in float32, UNIMPLEMENTED
// "FIELD: ..." for samples of other types.
absl::StatusOr<std::vector<float>> ToDisplacement(const std::vector<uint8_t>& samples, PixelType type, int components,
                                                  const Vec3d& sign, absl::string_view field);

// Appends samples to a file.
absl::Status WriteSamples(AtomicFile& file, Packing packing, const void* data, int64_t bytes);

// A header and samples in a file of their own beside it: the samples are written first, under a name that follows from
// their digest ("STEM.DIGEST.SUFFIX"), so that the header, which is replaced at once, never points to half of them. The
// samples that the replaced header had pointed to are removed.
std::string DetachedName(const std::string& header, const void* data, int64_t bytes, absl::string_view suffix);
absl::Status WriteDetached(const std::string& header, absl::string_view header_text, const std::string& data_name,
                           const void* data, int64_t bytes);

// The intensities as they are to be stored where a format knows no rescaling: the volume itself, or its float32.
HostVolume WithoutRescale(const HostVolume& volume);

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_FORMAT_SAMPLES_H_
