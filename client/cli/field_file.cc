// SPDX-License-Identifier: Apache-2.0
#include "client/cli/field_file.h"

#include "client/cli/session.h"
#include "engine/base/status_macros.h"
#include "io/nifti.h"
#include "proto/convert.h"

namespace intrawarp::cli {

absl::Status WriteFieldFile(const std::string& path, v1::FieldEncoding encoding, const v1::AffineMap& affine_part,
                            const client::GridData& field) {
  if (encoding != v1::FIELD_ENCODING_VELOCITY) {
    return Annotate(io::WriteField(path, field.geometry, field.values.data()), path);
  }
  INTRAWARP_ASSIGN_OR_RETURN(const AffineMap affine, AffineMapFromProto(affine_part));
  return Annotate(io::WriteVelocity(path, affine, field.geometry, field.values.data()), path);
}

}  // namespace intrawarp::cli
