// SPDX-License-Identifier: Apache-2.0
// Sparse matrices of files, for the command line. Thread-safe functions.
#ifndef INTRAWARP_CLIENT_CLI_MATRIX_FILES_H_
#define INTRAWARP_CLIENT_CLI_MATRIX_FILES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/sparse_matrix.h"
#include "engine/base/csr.h"

namespace intrawarp::cli {

bool IsMatrixName(const std::string& x);  // matrices/ID
// The command line calls a resident sparse matrix matrices/ID, the server sparseMatrices/ID; other strings stay.
std::string WireMatrixName(const std::string& shown);
// Every sparseMatrices/ID in a text as the command line calls it.
std::string ShownMatrixNames(const std::string& text);

// Whether both have entries at the same places, whatever their values.
bool HaveSamePattern(const client::SparseMatrix& a, const client::SparseMatrix& b);

// A Matrix Market file as CSR; the path is in the message of an error. OUT_OF_RANGE for a finite value that float32
// does not hold, when that is asked for.
absl::StatusOr<client::SparseMatrix> LoadMatrix(const std::string& path, ValueType type);
absl::Status SaveMatrix(const std::string& path, const client::SparseMatrix& matrix);

}  // namespace intrawarp::cli

#endif  // INTRAWARP_CLIENT_CLI_MATRIX_FILES_H_
