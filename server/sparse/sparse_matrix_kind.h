// SPDX-License-Identifier: Apache-2.0
// Sparse matrices as the bulk service moves them (server/object/new_object.h, server/bulk/resident_download.h).
#ifndef INTRAWARP_SERVER_SPARSE_SPARSE_MATRIX_KIND_H_
#define INTRAWARP_SERVER_SPARSE_SPARSE_MATRIX_KIND_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/bulk/resident_download.h"
#include "server/context/limits.h"
#include "server/object/new_object.h"
#include "server/store/matrix_store.h"

namespace intrawarp::server {

// A header whose content is a sparse matrix. INVALID_ARGUMENT, with paths relative to the header, when it is wrong or
// announces more than the limits allow. Allocates nothing of the sizes it reads.
absl::StatusOr<std::unique_ptr<NewObjectOf<StoredMatrix>>> ParseSparseMatrixUpload(const v1::UploadHeader& header,
                                                                                   const ServerLimits& limits);

// The same for a header whose content is new values for the pattern of a matrix, which the caller may see. NOT_FOUND
// when there is none. The object shares that matrix's pattern and lies on its device; on a server that keeps its
// objects its durable content is a whole CSR, so that it does not depend on the other matrix.
absl::StatusOr<std::unique_ptr<NewObjectOf<StoredMatrix>>> ParseSparseMatrixValuesUpload(const v1::UploadHeader& header,
                                                                                         const ServerContext& context,
                                                                                         const Identity& caller);

absl::StatusOr<ResidentDownload> FindSparseMatrixDownload(const ServerContext& context, const std::string& name,
                                                          const Identity& caller);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SPARSE_SPARSE_MATRIX_KIND_H_
