// SPDX-License-Identifier: Apache-2.0
// Finding the objects that requests name.
#ifndef INTRAWARP_SERVER_STORE_FIND_OBJECT_H_
#define INTRAWARP_SERVER_STORE_FIND_OBJECT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "server/base/names.h"
#include "server/identity/identity.h"
#include "server/store/matrix_store.h"
#include "server/store/transform_store.h"
#include "server/store/volume_store.h"

namespace intrawarp::server {

// The object of the store that a request names ("volumes/{id}"), as its caller may see it: INVALID_ARGUMENT names
// `field`, NOT_FOUND the resource.
inline absl::StatusOr<std::shared_ptr<const StoredVolume>> FindVolume(const VolumeStore& volumes,
                                                                      const std::string& name, absl::string_view field,
                                                                      const Identity& caller) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::string id, ParseVolumeName(name, field));
  return volumes.Find(id, caller);
}
inline absl::StatusOr<std::shared_ptr<const StoredMatrix>> FindMatrix(const MatrixStore& matrices,
                                                                      const std::string& name, absl::string_view field,
                                                                      const Identity& caller) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::string id, ParseSparseMatrixName(name, field));
  return matrices.Find(id, caller);
}
inline absl::StatusOr<std::shared_ptr<const StoredTransform>> FindTransform(const TransformStore& transforms,
                                                                            const std::string& name,
                                                                            absl::string_view field,
                                                                            const Identity& caller) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::string id, ParseTransformName(name, field));
  return transforms.Find(id, caller);
}

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_STORE_FIND_OBJECT_H_
