// SPDX-License-Identifier: Apache-2.0
#include "server/restore/upload_header.h"

#include "server/sparse/sparse_matrix_kind.h"
#include "server/status/errors.h"
#include "server/transform/transform_kind.h"
#include "server/volume/volume_kind.h"

namespace intrawarp::server {

absl::StatusOr<std::unique_ptr<NewObject>> ParseUploadHeader(const v1::UploadHeader& header, const ServerLimits& limits,
                                                             const Device& device) {
  switch (header.content_case()) {
    case v1::UploadHeader::kVolume:
      return ParseVolumeUpload(header, limits, device);
    case v1::UploadHeader::kSparseMatrix:
      return ParseSparseMatrixUpload(header, limits);
    case v1::UploadHeader::kTransform:
      return ParseTransformUpload(header, limits);
    case v1::UploadHeader::kSparseMatrixValues:  // of a matrix in a store: ParseSparseMatrixValuesUpload
    case v1::UploadHeader::CONTENT_NOT_SET:
      break;
  }
  return InvalidField("content", "volume, sparse_matrix, sparse_matrix_values or transform must be given");
}

}  // namespace intrawarp::server
