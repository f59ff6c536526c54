// SPDX-License-Identifier: Apache-2.0
#include "client/cli/matrix_files.h"

#include <cmath>
#include <limits>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "client/cli/command_context.h"
#include "engine/base/status_macros.h"
#include "io/format/matrix_market.h"

namespace intrawarp::cli {
namespace {

constexpr char kShownMatrices[] = "matrices/";
constexpr char kWireMatrices[] = "sparseMatrices/";

template <typename T>
absl::StatusOr<client::SparseMatrix> ToCsr(const HostCoo& coo) {
  INTRAWARP_ASSIGN_OR_RETURN(HostCsr<T> csr, CsrFromCoo<T>(coo));
  return client::SparseMatrix(std::move(csr));
}

absl::StatusOr<client::SparseMatrix> Read(const std::string& path, ValueType type) {
  INTRAWARP_ASSIGN_OR_RETURN(const HostCoo coo, io::ReadMatrixMarket(path));
  if (type == ValueType::kFloat64) return ToCsr<double>(coo);
  for (double value : coo.values) {
    if (std::isfinite(value) && std::isinf(static_cast<float>(value))) {
      return absl::OutOfRangeError("a value is too large for float32; float64 (precision fp64) holds it");
    }
  }
  return ToCsr<float>(coo);
}

}  // namespace

bool IsMatrixName(const std::string& x) { return absl::StartsWith(x, kShownMatrices); }

std::string WireMatrixName(const std::string& shown) {
  absl::string_view id = shown;
  return absl::ConsumePrefix(&id, kShownMatrices) ? absl::StrCat(kWireMatrices, id) : shown;
}

std::string ShownMatrixNames(const std::string& text) {
  return absl::StrReplaceAll(text, {{kWireMatrices, kShownMatrices}});
}

bool HaveSamePattern(const client::SparseMatrix& a, const client::SparseMatrix& b) {
  return std::visit(
      [](const auto& left, const auto& right) {
        return left.rows == right.rows && left.columns == right.columns && left.row_offsets == right.row_offsets &&
               left.column_indices == right.column_indices;
      },
      a, b);
}

absl::StatusOr<client::SparseMatrix> LoadMatrix(const std::string& path, ValueType type) {
  absl::StatusOr<client::SparseMatrix> matrix = Read(path, type);
  if (!matrix.ok()) return Annotate(matrix.status(), path);
  return matrix;
}

absl::Status SaveMatrix(const std::string& path, const client::SparseMatrix& matrix) {
  return Annotate(std::visit([&](const auto& csr) { return io::WriteMatrixMarket(path, csr); }, matrix), path);
}

}  // namespace intrawarp::cli
