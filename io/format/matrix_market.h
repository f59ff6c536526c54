// SPDX-License-Identifier: Apache-2.0
// Sparse matrices as Matrix Market files (NIST's coordinate format), plain or gzipped: .mtx and .mtx.gz.
//
// Read: real, integer and pattern (every value 1); general, symmetric and skew-symmetric, which are expanded to
// general. Indices are from 1 in the file and from 0 here; duplicates stay, and stand for their sum. Values may be
// infinite or NaN. complex, hermitian and array are UNIMPLEMENTED by name.
//
// Files are taken for hostile: the count of the header is checked against the length of the file before memory is taken
// for it, and memory for a compressed one grows with the entries that have really come out. Errors: INVALID_ARGUMENT
// "header: ...", "size: ..." or "line N: ..."; DATA_LOSS "data: ..." for fewer entries than the header says and for
// corrupt gzip; RESOURCE_EXHAUSTED "size: ..." above `max_bytes`; NOT_FOUND and the like "file: ...". Messages hold no
// text of the file.
//
// Thread-safe functions.
#ifndef INTRAWARP_IO_FORMAT_MATRIX_MARKET_H_
#define INTRAWARP_IO_FORMAT_MATRIX_MARKET_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/csr.h"

namespace intrawarp::io {

inline constexpr int64_t kDefaultMaxMatrixBytes = int64_t{16} << 30;

// `max_bytes` limits the matrix in memory: 16 bytes an entry (after expansion) and 8 a row.
absl::StatusOr<HostCoo> ReadMatrixMarket(const std::string& path, int64_t max_bytes = kDefaultMaxMatrixBytes);

// "real general", by rows, the shortest text that reads back exactly; gzipped when the name ends in .gz.
// INVALID_ARGUMENT for a matrix that is not valid. Replaces the file
// at once or leaves it as it was (AtomicFile in file.h).
template <typename T>
absl::Status WriteMatrixMarket(const std::string& path, const HostCsr<T>& matrix);

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_FORMAT_MATRIX_MARKET_H_
