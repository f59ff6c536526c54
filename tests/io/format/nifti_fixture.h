// SPDX-License-Identifier: Apache-2.0
// NIfTI files made byte by byte.
#ifndef INTRAWARP_TESTS_IO_FORMAT_NIFTI_FIXTURE_H_
#define INTRAWARP_TESTS_IO_FORMAT_NIFTI_FIXTURE_H_

#include <nifti1_io.h>
#include <nifti2.h>
#include <zlib.h>

#include <string>
#include <vector>

#include "engine/geometry/geometry.h"
#include "tests/io/io_test.h"

namespace intrawarp::io {

using NiftiTest = FileTest;

inline constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
inline constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
inline constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

std::vector<uint8_t> RandomBytes(size_t count, uint32_t seed);

void ExpectNear(const Geometry& a, const Geometry& b, double tolerance = 1e-5);

// A header as another program might have written it, 4x3x2 int16 with an sform of 2 mm voxels in RAS.
nifti_1_header SomeHeader();

std::string FileOf(const nifti_1_header& h, size_t data_bytes = 48);

std::string Gzip(const std::string& plain);

// The same file as a machine of the other byte order writes it. The offsets are those of the NIfTI-1 standard.
std::string OtherByteOrder(std::string file, int bytes_per_pixel);

}  // namespace intrawarp::io

#endif  // INTRAWARP_TESTS_IO_FORMAT_NIFTI_FIXTURE_H_
